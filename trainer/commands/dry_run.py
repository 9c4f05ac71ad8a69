"""``trainer run --dry-run``: show a run's prompt, completion and score on one problem, without
training or recording.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from loptune.errors import printable, shortened
from loptune.terminal.table import counted
from rewards.sandbox import RewardPool, ScoredText
from trainer.algorithm.rule_check import check_rules
from trainer.config.schema import TrainConfig
from trainer.evaluation.pretraining_check import run_pretraining_check
from trainer.load_check import check_without_training
from trainer.load_check.reward import RewardProbe, probe_reward, warn_of_empty
from trainer.parallel.device import describe_device, local_device
from trainer.parallel.models import load_policy_for_inference
from trainer.planning.advice import advise, advise_data
from trainer.planning.memory import footprint
from trainer.policy.architectures import ModelSize
from trainer.problems.load import encode_prompt
from trainer.problems.sampler import training_steps
from trainer.rollouts.collect import derive_seed, sample_completions, sampling_params
from trainer.rollouts.prepared import prepare
from trainer.rollouts.transformers import TransformersEngine
from trainer.types import Completion, Problem

_SHOWN_TOKENS = 24  # number of prompt tokens to show
_SHOWN_CHARACTERS = 2000
_SHOWN_ANSWER = 60  # characters of a reference answer
NEW_TOKENS = 64  # limit of the sampled completion on a CPU, where full length may take minutes
_NEW_TOKENS_QUICK = 512  # limit on a GPU, or for a small model
_SMALL_PARAMETERS = 10**7


def dry_run(
    config: TrainConfig, sample: int | None = None, completions: Sequence[str] = ()
) -> None:
    """Print one tokenized prompt, one sampled and scored completion, the memory estimate and the
    number of steps.

    With ``sample``, also sample that many problems and estimate the learning signal. The given
    ``completions`` are also scored, as completions of the first problem.

    Raises:
        ConfigError, MissingError, RewardError: the run could not start.
    """
    with prepare(config) as prepared:
        tokenizer = prepared.tokenizer
        problems = prepared.problems
        sets = prepared.sets
        prompt = encode_prompt(tokenizer, problems[0])
        _print_prompt(problems[0], prompt, tokenizer)
        check_rules(config.algorithm)
        model = load_policy_for_inference(config, local_device(config.parallel.device))
        engine = TransformersEngine(model, pad_token_id=tokenizer.pad_token_id)
        check_without_training(config, engine, tokenizer, problems)
        completion = _sample(config, engine, tokenizer, prompt)
        _print_completion(config, problems[0], completion, prepared.rewards, completions)
        probes = probe_reward(prepared.rewards, problems)
        _print_probes(probes)
        warn_of_empty(probes)
        sizes = [config.rollout.group_size]
        check = run_pretraining_check(config, model, prepared, sample, sizes) if sample else None
    _print_plan(config, model, len(problems), {name: len(of_set) for name, of_set in sets.items()})
    context = getattr(model.config, "max_position_embeddings", None)
    advice = [*advise(config), *advise_data(config, problems, sets, context)]
    if check is not None:
        _print_labeled("sample", check.lines(config, sizes))
        advice += check.advice()
    for entry in advice:
        print(f"\n{entry}")


def _print_prompt(problem: Problem, prompt: Sequence[int], tokenizer: Any) -> None:
    pieces = []
    for token in prompt[:_SHOWN_TOKENS]:
        text = printable(tokenizer.decode([token])).replace("\n", "\\n")
        pieces.append(f"{token} {text}")
    if len(prompt) > _SHOWN_TOKENS:
        pieces.append(f"... {len(prompt) - _SHOWN_TOKENS} more")
    print(f"\nprompt ({len(prompt)} tokens):\n{_indented(problem.prompt + problem.prefill)}")
    print(f"tokens: {' | '.join(pieces)}", flush=True)


def _sample(
    config: TrainConfig, engine: TransformersEngine, tokenizer: Any, prompt: Sequence[int]
) -> Completion:
    """Sample the training run's first completion, with a lower token limit if the full length would
    take minutes.
    """
    model = engine.model
    is_quick = model.device.type == "cuda" or model.num_parameters() < _SMALL_PARAMETERS
    limit = _NEW_TOKENS_QUICK if is_quick else NEW_TOKENS
    params = replace(
        sampling_params(config, tokenizer), max_new_tokens=min(config.rollout.max_new_tokens, limit)
    )
    seeds = [[derive_seed(config.seed, 0, 0, 0)]]
    of_prompts = sample_completions(engine, tokenizer, [prompt], seeds, params)
    return of_prompts[0][0]


def _print_completion(
    config: TrainConfig,
    problem: Problem,
    completion: Completion,
    rewards: RewardPool,
    given: Sequence[str],
) -> None:
    texts = [completion.text, *given]
    scores = rewards.score(
        [problem.prefill + text for text in texts],
        [problem.answer] * len(texts),
        [problem.columns] * len(texts),
    )
    length = f"{len(completion.token_ids)} tokens"
    if completion.finish_reason == "length":
        length += ", truncated"
    print(f"\ncompletion ({length}):\n{_indented(completion.text)}")
    print(f"reward: {_verdict(scores[0])}")
    for text, scored in zip(given, scores[1:], strict=True):
        print(f"\nyour completion:\n{_indented(text)}\nreward: {_verdict(scored)}")
    functions = [f"{weight:g} x {name}" for name, weight in config.reward.functions.items()]
    print(f"functions:  {', '.join(functions)}\n")


def _print_probes(probes: Sequence[RewardProbe]) -> None:
    """Print the scores of reference answers and of empty completions, and the part of each that the
    reward reads.
    """
    for probe in probes:
        for name, scored in (
            (
                f"the reference answer {_quoted(probe.reference.completion)} as a completion",
                probe.reference,
            ),
            ("an empty completion", probe.empty),
        ):
            print(f"reward of {name}: {_verdict(scored.scored)}")
            print(f"    the reward reads {_quoted(scored.text)}")
    print()


def _quoted(text: str) -> str:
    return repr(shortened(text, _SHOWN_ANSWER))


def _verdict(scored: ScoredText) -> str:
    if scored.status != "ok":
        return f"none ({scored.status}: {scored.message})"
    score = scored.score
    parts = [f"{name} {value:g}" for name, value in score.breakdown.items()]
    correct = "correct" if score.correct else "not correct"
    text = f"{score.reward:g}, {correct}"
    if parts:
        text += f" ({', '.join(parts)})"
    return text


def _print_plan(
    config: TrainConfig, model: PreTrainedModel, problems: int, sets: dict[str, int]
) -> None:
    rollout = config.rollout
    optim = config.optim
    algorithm = config.algorithm
    completions = rollout.prompts_per_step * rollout.group_size
    steps = config.max_steps or training_steps(
        config.epochs, problems, rollout.prompts_per_step, config.data.drop_last
    )
    passes = algorithm.update_epochs
    if algorithm.isolates:
        passes *= 2
    updates = passes * math.ceil(completions / optim.update_batch_size)
    evaluations = math.ceil(steps / config.evaluation.every_steps) + config.evaluation.at_start
    answered = sum(sets.values()) * config.evaluation.completions_per_problem
    parameters = f"{model.num_parameters() / 1e6:,.1f} M parameters"
    dtype = str(model.dtype).removeprefix("torch.")
    evaluated = ", ".join(f"{name} {count}" for name, count in sets.items())
    checkpoints = config.checkpoint.keep_last + config.checkpoint.keep_best
    _print_labeled(
        "model", [f"{config.model.name_or_path}, {parameters}, {dtype} on {model.device.type}"]
    )
    _print_labeled("data", [f"{problems} training problems; evaluation: {evaluated}"])
    _print_labeled(
        "steps",
        [
            f"{steps}, each {rollout.prompts_per_step} prompts x {rollout.group_size} completions "
            f"and {counted(updates, 'optimizer step')}"
        ],
    )
    if config.max_hours is not None:
        _print_labeled("time budget", [f"{config.max_hours:g} h"])
    _print_labeled("evaluations", [f"{evaluations} of {answered} completions"])
    _print_labeled("checkpoints", [f"{checkpoints} kept"])
    ranks_to_show = (1, 4) if config.parallel.strategy == "deepspeed" else (1,)
    for ranks in ranks_to_show:
        _print_labeled("memory", _memory(config, model, ranks))


def _memory(config: TrainConfig, model: PreTrainedModel, ranks: int) -> Sequence[str]:
    size = ModelSize(model.config.get_text_config().to_dict(), model.num_parameters())
    estimate = footprint(config, ranks, describe_device(model.device), size)
    if estimate is None:
        return ["unknown: a required size is missing from config.json"]
    return list(estimate.lines())


def _print_labeled(label: str, lines: Sequence[str]) -> None:
    """Print lines in a column to the right of their label, which is on the first line."""
    for index, line in enumerate(lines):
        heading = f"{label}:" if index == 0 else ""
        print(f"{heading:<13}{line}")


def _indented(text: str) -> str:
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[:_SHOWN_CHARACTERS]} ..."
    return "\n".join(f"    {line}" for line in printable(text).split("\n"))
