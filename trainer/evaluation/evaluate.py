"""Evaluation of a policy on sets of problems."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from rewards.sandbox import RewardPool
from trainer.config.schema import TrainConfig
from trainer.evaluation.estimators import pass_at_k
from trainer.parallel.ranks import Parallel
from trainer.rollouts.collect import (
    GroupRequest,
    derive_seed,
    sample_groups,
    sampling_params,
    score_groups,
)
from trainer.rollouts.engine import Sampler
from trainer.types import Problem, Rollout, all_rollouts

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class EvaluationResult:
    """Rollouts of every evaluation set, and the metrics computed from them."""

    rollouts: dict[str, list[Rollout]]
    metrics: dict[str, float]
    # set -> values of k for pass@k
    values_of_k: Mapping[str, Sequence[int]] = field(default_factory=dict)


def evaluate(
    engine: Sampler,
    tokenizer: PreTrainedTokenizerBase,
    rewards: Mapping[str, RewardPool],
    sets: dict[str, list[Problem]],
    config: TrainConfig,
    parallel: Parallel,
) -> EvaluationResult:
    """Sample completions for every problem of every set, with the set's temperature and number of
    completions, and score them by the set's reward.

    The sampling seeds do not depend on the training step, so two evaluations in a run differ only
    in the policy. ``rewards`` maps each set to its reward pool. Collective.

    Raises:
        RewardError: scoring failed for too many completions.
        EngineError: the engine failed.
    """
    rollouts: dict[str, list[Rollout]] = {}
    for name, problems in sets.items():
        evaluation = config.evaluation.of_set(name)
        params = replace(
            sampling_params(config, tokenizer),
            temperature=evaluation.temperature,
            top_p=evaluation.top_p,
            max_new_tokens=evaluation.max_new_tokens or config.rollout.max_new_tokens,
            top_k=0,
            min_p=0.0,
        )
        requests = []
        for index in range(parallel.rank, len(problems), parallel.world_size):
            numbers = range(evaluation.completions_per_problem)
            seeds = [derive_seed(config.seed, "evaluation", name, index, k) for k in numbers]
            requests.append(GroupRequest(index, problems[index], seeds))
        sampled = sample_groups(engine, tokenizer, requests, params)
        of_rank = score_groups(sampled, rewards[name])
        groups = sorted(parallel.gather(of_rank), key=lambda group: group.group_id)
        rollouts[name] = all_rollouts(groups)
    values_of_k = {name: config.evaluation.of_set(name).pass_at_k for name in sets}
    metrics = evaluation_metrics(rollouts, values_of_k)
    if config.evaluation.composite:
        metrics["eval/composite"] = composite(rollouts, values_of_k, config.evaluation.composite)
    return EvaluationResult(rollouts, metrics, values_of_k)


def evaluation_metrics(
    rollouts: Mapping[str, Sequence[Rollout]],
    values_of_k: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> dict[str, float]:
    """Return the ``eval/*`` metrics. The first set's accuracy is ``eval/accuracy``, with one metric
    per difficulty.

    Metrics of other sets are named ``eval/accuracy/SET`` and so on. With several completions per
    problem, accuracy is avg@n and ``eval/pass_at_k``, with k = n, is added. ``values_of_k`` has
    further values of k for each set, for ``eval/pass_at/K``. Completions of a problem must be
    adjacent and share a ``group_id``.
    """
    every_rollout = list(itertools.chain.from_iterable(rollouts.values()))
    metrics = {"eval/scoring_failures": _mean([r.scoring != "ok" for r in every_rollout])}
    for index, (name, answers) in enumerate(rollouts.items()):
        suffix = f"/{name}" if index else ""
        for quantity, value in measured(answers, values_of_k.get(name, ())).items():
            metrics[f"eval/{quantity}{suffix}"] = value
        by_difficulty: dict[str, list[bool]] = defaultdict(list)
        for r in answers:
            by_difficulty[r.problem.difficulty].append(r.correct)
        if len(by_difficulty) > 1:
            prefix = "eval/accuracy/" if index == 0 else f"eval/accuracy/{name}."
            for difficulty, outcomes in sorted(by_difficulty.items()):
                metrics[prefix + (difficulty or "none")] = _mean(outcomes)
    return metrics


def composite(
    rollouts: Mapping[str, Sequence[Rollout]],
    values_of_k: Mapping[str, Sequence[int]],
    weights: Mapping[str, float],
) -> float:
    """Return the weighted mean over benchmarks: ``sum_b w_b x_b / sum_b w_b``.

    ``weights`` maps an evaluation set to the weight of its accuracy, and ``SET/pass@K`` to the
    weight of its pass@K. ``values_of_k`` as in `evaluation_metrics`. The mean of table 1 of
    arXiv:2505.12929 has six terms of weight 1.
    """
    total = 0.0
    for term, weight in weights.items():
        name, _, quantity = term.partition("/")
        values = measured(rollouts[name], values_of_k.get(name, ()))
        if not quantity:
            value = values["accuracy"]
        else:
            k = int(quantity.removeprefix("pass@"))
            value = values.get(f"pass_at/{k}", values["pass_at_k"])
        total += weight * value
    return total / sum(weights.values())


def measured(rollouts: Sequence[Rollout], values_of_k: Sequence[int] = ()) -> dict[str, float]:
    """Return mean accuracy, reward, length and truncated fraction; ``pass_at_k`` with k the number
    of completions per problem if there are several; and ``pass_at/K`` for each of ``values_of_k``.
    """
    values = {
        "accuracy": _mean([r.correct for r in rollouts]),
        "reward": _mean([r.reward for r in rollouts]),
        "completion_length": _mean([len(r.completion.token_ids) for r in rollouts]),
        "truncated": _mean([r.completion.finish_reason == "length" for r in rollouts]),
    }
    correct, completions = correct_by_problem(rollouts)
    if completions.min() > 1:
        values["pass_at_k"] = float((correct > 0).mean())
    for k in values_of_k:
        values[f"pass_at/{k}"] = float(pass_at_k(correct, completions, k).mean())
    return values


def correct_by_problem(rollouts: Sequence[Rollout]) -> tuple[IntArray, IntArray]:
    """Return the numbers of correct and of all completions per problem, each [P]."""
    groups = np.array([r.group_id for r in rollouts])
    _, index = np.unique(groups, return_inverse=True)
    correct = np.bincount(index, weights=[float(r.correct) for r in rollouts]).astype(np.int64)
    return correct, np.bincount(index)


def completion_rows(rollouts: dict[str, list[Rollout]], count: int) -> list[dict[str, Any]]:
    """Return at most ``count`` rollouts of the first set as table rows, spaced evenly."""
    name, answers = next(iter(rollouts.items()))
    count = min(count, len(answers))
    chosen = [answers[place * len(answers) // count] for place in range(count)]
    return [_row(rollout, name) for rollout in chosen]


def _row(rollout: Rollout, of_set: str) -> dict[str, Any]:
    problem = rollout.problem
    completion = rollout.completion
    scoring: str = rollout.scoring
    if rollout.scoring_error:
        scoring += f": {rollout.scoring_error}"
    row: dict[str, Any] = {
        "prompt": problem.prompt + problem.prefill,
        "completion": completion.text,
        "reward": rollout.reward,
        "correct": rollout.correct,
        "answer": str(problem.answer),
        "difficulty": problem.difficulty,
        "tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "scoring": scoring,
        "problem": problem.problem_id,
        "set": of_set,
    }
    if completion.stop_string:
        row["stop_string"] = completion.stop_string
    return row


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
