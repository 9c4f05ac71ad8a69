"""The metrics of a training step, computed from what its stages already have."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer.algorithm.engine_correction import importance_weights, ratio_bounds
from trainer.algorithm.first_forwards import FirstForwards
from trainer.algorithm.kl import kl_penalty
from trainer.algorithm.token_filters import low_probability_tokens
from trainer.algorithm.update import UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.metrics.stopwatch import Stopwatch
from trainer.parallel.ranks import Parallel
from trainer.types import RolloutGroup, TrainBatch


def rollout_metrics(groups: Sequence[RolloutGroup], parallel: Parallel) -> dict[str, float]:
    """``rollout/*`` and ``reward/*`` of the step's completions, over all ranks."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = torch.tensor([[r.reward for r in group.rollouts] for group in groups])  # [groups, G]
    spread = rewards.std(dim=1) if rewards.shape[1] > 1 else torch.zeros(len(groups))
    of_groups = _mean_over_ranks(
        {
            "rollout/reward_std": float(spread.sum()),
            "rollout/silent_groups": float((rewards.amax(dim=1) == rewards.amin(dim=1)).sum()),
        },
        len(groups),
        parallel,
    )
    sums: dict[str, float] = defaultdict(float)
    sums["rollout/reward"] = float(rewards.sum())
    sums["rollout/accuracy"] = sum(r.correct for r in rollouts)
    sums["rollout/completion_length"] = sum(len(r.completion.token_ids) for r in rollouts)
    sums["rollout/truncated"] = sum(r.completion.finish_reason == "length" for r in rollouts)
    sums["reward/timeouts"] = sum(r.scoring == "timeout" for r in rollouts)
    sums["reward/errors"] = sum(r.scoring == "error" for r in rollouts)
    sums["reward/format_failures"] = sum(not r.parsed for r in rollouts)
    for r in rollouts:
        for part, value in r.reward_breakdown.items():
            sums[f"reward/component/{part}"] += value
    return of_groups | _mean_over_ranks(sums, len(rollouts), parallel)


def batch_metrics(
    batch: TrainBatch, algorithm: AlgorithmConfig, parallel: Parallel, first: FirstForwards | None = None
) -> dict[str, float]:
    """Metrics of the policy before its update, as means over completion tokens of all ranks.

    Where top_p, top_k or min_p drop tokens, the engine's log-probabilities are renormalised over those kept and
    the trainer's are not: ``rollout/engine_*`` then hold the kept mass besides the mismatch.

    Args:
        batch: scored, with advantages.
        algorithm: the update rule.
        parallel: the ranks.
        first: what the update's forwards found, where none was done before it.
    """
    mask = batch.completion_mask
    sums = {
        "policy/advantage_abs": float((batch.advantages.abs() * mask).sum()),
        "policy/mean_probability": float((batch.old_logprobs.exp() * mask).sum()),
    }
    if batch.ref_logprobs is not None:
        penalty = kl_penalty(batch.old_logprobs, batch.ref_logprobs, algorithm)
        sums["policy/kl"] = float((penalty * mask).sum())
    if algorithm.lopti_eta > 0:
        low = low_probability_tokens(batch.old_logprobs, mask, algorithm.lopti_eta)
        sums["policy/low_token_share"] = float(low.sum())
    known = mask if first is None else first.known
    entropy = {"policy/entropy": float((batch.entropies * known).sum())}
    metrics = _mean_over_ranks(sums, float(mask.sum()), parallel)
    metrics |= _mean_over_ranks(entropy, float(known.sum()), parallel)
    return metrics | _engine_metrics(batch, algorithm, parallel, first)


def _engine_metrics(
    batch: TrainBatch, algorithm: AlgorithmConfig, parallel: Parallel, first: FirstForwards | None
) -> dict[str, float]:
    """How far trainer and engine are apart; from the first optimizer step's forward where that is the only one."""
    cut: Tensor | None
    if batch.rollout_logprobs is not None:
        mask = batch.completion_mask
        log_ratio = (batch.old_logprobs - batch.rollout_logprobs) * mask
        weights = importance_weights(batch.old_logprobs, batch.rollout_logprobs, mask, algorithm)
        cut_at = (algorithm.importance_sampling_cap or 0.0) if algorithm.importance_rule == "truncate" else 0.0
        cut = None if weights is None else weights.eq(cut_at)
    else:
        assert first is not None
        mask = first.unmoved
        log_ratio = (first.logprobs - batch.old_logprobs) * mask
        weights = ratio_bounds(log_ratio, algorithm)
        cut = None if weights is None else weights.lt(1)
    difference = log_ratio.abs()
    sums = {
        "rollout/engine_logprob_diff": float(difference.sum()),
        "rollout/engine_ratio": float((log_ratio.exp() * mask).sum()),
        "rollout/engine_ratio_above_2": float((log_ratio > math.log(2)).sum()),
    }
    if cut is not None:
        sums["rollout/importance_cut"] = float((cut * mask).sum())
    largest = max(parallel.gather([float(difference.max())]))
    return _mean_over_ranks(sums, float(mask.sum()), parallel) | {"rollout/engine_logprob_diff_max": largest}


def update_metrics(statistics: UpdateStatistics, lr: float, parallel: Parallel) -> dict[str, float]:
    """Metrics of the step's optimizer steps; token shares are over the tokens updated on all ranks."""
    sums = {
        "policy/clip_fraction": float(statistics.tokens["clipped"]),
        "policy/dual_clip_fraction": float(statistics.tokens["dual_clipped"]),
        "policy/approx_kl": float(statistics.tokens["approx_kl"]),
    }
    updates = max(1, statistics.updates)
    return _mean_over_ranks(sums, float(statistics.tokens["tokens"]), parallel) | {
        "policy/loss": statistics.loss / updates,
        "policy/ratio_max": max(parallel.gather([float(statistics.ratio_max)])),
        "optim/grad_norm": statistics.grad_norm / updates,
        "optim/lr": lr,
        "optim/updates": float(statistics.updates),
        "update/tokens_computed": sum(parallel.gather([float(statistics.tokens_computed)])),
        "update/tokens_needed": sum(parallel.gather([float(statistics.tokens_needed)])),
    }


def time_metrics(stopwatch: Stopwatch, batch: TrainBatch, parallel: Parallel) -> dict[str, float]:
    """Seconds of every phase (the slowest rank's) and completion tokens per second of all ranks."""
    names = sorted(stopwatch.seconds)
    slowest = [
        max(values) for values in zip(*parallel.gather([[stopwatch.seconds[n] for n in names]]), strict=True)
    ]
    metrics = {f"time/{name}": seconds for name, seconds in zip(names, slowest, strict=True)}
    tokens = sum(parallel.gather([float(batch.completion_mask.sum())]))
    return metrics | {"time/tokens_per_s": tokens / metrics["time/step"]}


def _mean_over_ranks(sums: Mapping[str, float], count: float, parallel: Parallel) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for part in parallel.gather([{**sums, "": float(count)}]):
        for name, value in part.items():
            totals[name] += value
    total_count = max(totals.pop(""), 1.0)
    return {name: value / total_count for name, value in totals.items()}
