"""Pre-run warnings about valid but suspicious settings."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loptune.errors import warning_text
from loptune.section import Section
from trainer.config.schema import TrainConfig, ineffective_keys
from trainer.rules.names import DEFAULT_LOSS
from trainer.types import Problem

_MIN_ADAPTER_LR = 5e-6  # lower values are typical of full fine-tuning, which often uses 1e-6
_PLACEHOLDER = re.compile(r"(?<![\\\w{}])\{([A-Za-z_]\w*)\}(?!\})")  # not LaTeX's \boxed{answer}


@dataclass(frozen=True)
class Advice:
    """A warning about a likely mistake, printed as three lines."""

    what: str
    where: str
    hint: str

    def __str__(self) -> str:
        return warning_text(self.what, self.where, self.hint)


def ineffective_key_warnings(section: Section, prefix: str = "") -> Iterator[Advice]:
    """Yield advice for each key of a section that is set but has no effect. ``prefix`` precedes the
    keys.
    """
    for key, needed in ineffective_keys(section, prefix):
        yield Advice(
            f"{key} has no effect with these settings",
            f"{key}, {needed.partition('=')[0]}",
            f"set {needed}, or remove {key}",
        )


def correctness_reward(functions: Mapping[str, float]) -> str:
    """Return the reward function that decides correctness: the one with the largest absolute
    weight.
    """
    return max(functions, key=lambda name: abs(functions[name]))


def optimizer_steps(config: TrainConfig) -> int:
    """Return the number of optimizer steps per batch of completions, over all passes and epochs."""
    completions = config.rollout.prompts_per_step * config.rollout.group_size
    passes = 2 if config.algorithm.isolates else 1
    steps = math.ceil(completions / config.optim.update_batch_size)
    return config.algorithm.update_epochs * passes * steps


def one_step_advice(config: TrainConfig, rules: str) -> Advice:
    """Return the advice on ``rules`` that train alike because a batch has one optimizer step."""
    completions = config.rollout.prompts_per_step * config.rollout.group_size
    half = max(1, completions // 2)
    return Advice(
        "each batch has one optimizer step, so the updated policy is always the sampling policy "
        f"and the probability ratio is always 1. {rules} that differ only in the ratio, the clip "
        "range or a constant factor train in the same way",
        "optim.update_batch_size, algorithm.update_epochs",
        f"set optim.update_batch_size={half} for two steps per batch of {completions} completions",
    )


def advise(config: TrainConfig) -> Iterator[Advice]:
    """Yield advice that needs only the configuration."""
    rollout = config.rollout
    optim = config.optim
    yield from ineffective_key_warnings(config)
    if rollout.group_size == 1 and config.algorithm.advantage.needs_groups:
        yield Advice(
            f"{config.algorithm.advantage.name} compares completions of the same prompt, but "
            "rollout.group_size is 1",
            "rollout.group_size",
            "set it to 4 or more, or use algorithm.advantage=reinforce_plus_plus",
        )
    completions = rollout.prompts_per_step * rollout.group_size
    if completions > optim.update_batch_size and completions % optim.update_batch_size:
        yield Advice(
            f"{completions} completions per step are not a multiple of "
            "optim.update_batch_size: the last optimizer step of each pass has only "
            f"{completions % optim.update_batch_size} completions",
            "optim.update_batch_size",
            f"make it a divisor of {rollout.prompts_per_step} x {rollout.group_size}",
        )
    if config.algorithm.loss.name != DEFAULT_LOSS and optimizer_steps(config) == 1:
        yield one_step_advice(config, f"{config.algorithm.loss.name} and other losses")
    if config.model.lora.r > 0 and optim.lr < _MIN_ADAPTER_LR:
        yield Advice(
            f"optim.lr {optim.lr:g} is low for an adapter, which needs about ten times the "
            "learning rate of full fine-tuning",
            "optim.lr",
            "try 1e-5 to 1e-4",
        )
    judge = correctness_reward(config.reward.functions)
    of_correctness_reward = config.reward.functions[judge]
    if of_correctness_reward < 0:
        yield Advice(
            f"{judge} decides what counts as correct, but its weight is negative "
            f"({of_correctness_reward:g}), so training lowers the accuracy",
            "reward.functions",
            "assign the largest weight to the function that decides what is correct",
        )
    yield from _template(config)


def advise_data(
    config: TrainConfig,
    train: Sequence[Problem],
    sets: Mapping[str, Sequence[Problem]],
    context: int | None,
) -> Iterator[Advice]:
    """Yield advice that needs the problems and the model.

    ``context`` is the model's context length [tokens], or None if unknown.
    """
    problems = len(train)
    prompts = config.rollout.prompts_per_step
    if prompts > problems:
        yield Advice(
            f"a step samples {prompts} prompts but there are only {problems} problems, so "
            f"each occurs up to {-(-prompts // problems)} times per step",
            "rollout.prompts_per_step",
            f"lower it to at most {problems}, or add data",
        )
    beyond = config.limits_beyond(context) if context is not None else []
    if beyond:
        yield Advice(
            f"max_prompt_tokens {config.data.max_prompt_tokens} + max_new_tokens "
            f"{config.longest_completion} exceeds the model's context length of {context}",
            ", ".join(["data.max_prompt_tokens", *beyond]),
            f"lower them so that a prompt and a completion have at most {context} tokens together",
        )
    trained = {problem.problem_id for problem in train}
    for name, of_set in sets.items():
        shared = sum(problem.problem_id in trained for problem in of_set)
        if shared:
            yield Advice(
                f"{shared} of {len(of_set)} problems of evaluation set {name} are also in the "
                "training data, so its accuracy is not held-out accuracy",
                f"evaluation.sets.{name}",
                "remove them from data.train",
            )


def _template(config: TrainConfig) -> Iterator[Advice]:
    for key in ("prompt_template", "system_prompt"):
        text = getattr(config.data, key) or ""
        placeholders = {"question"} if key == "prompt_template" else set()
        for name in sorted(set(_PLACEHOLDER.findall(text)) - placeholders):
            yield Advice(
                f"{{{name}}} is not replaced: the only placeholder is {{question}} in "
                "prompt_template",
                f"data.{key}",
                f"remove {{{name}}}, or put its value into the prompt column of the data",
            )
