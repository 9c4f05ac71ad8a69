"""Metrics of a training step."""

from collections import defaultdict

import torch
from torch import Tensor

from trainer.algorithm.engine_correction import importance_weights
from trainer.algorithm.kl import kl_penalty
from trainer.algorithm.token_filters import low_probability_tokens
from trainer.algorithm.update import UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.metrics.reading import Metrics, means, over_ranks
from trainer.metrics.stopwatch import Stopwatch
from trainer.parallel.device import peak_bytes
from trainer.parallel.ranks import Parallel
from trainer.rules.groups import is_constant
from trainer.types import SampledGroups, TrainBatch


def rollout_metrics(sample: SampledGroups) -> Metrics:
    """Return the ``rollout/*`` and ``reward/*`` metrics of a step."""
    groups = sample.sampled
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = torch.tensor([[r.reward for r in group.rollouts] for group in groups])  # [groups, G]
    spread = rewards.std(dim=1) if rewards.shape[1] > 1 else torch.zeros(len(groups))
    sums: dict[str, Tensor | float] = defaultdict(float)
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
    sums[""] = len(rollouts)
    # a group of size 1 never counts as zero-variance: its advantage comes from the batch
    silent = is_constant(rewards.double()) & (rewards.shape[1] > 1)
    of_groups: dict[str, Tensor | float] = {
        "groups": float(len(groups)),
        "spread": spread.sum(),
        "silent": silent.sum(),
    }
    totals = over_ranks((yield sums | of_groups))
    count, std, equal = (float(totals.pop(name)) for name in of_groups)
    of_all = {"rollout/reward_std": std / count, "rollout/silent_groups": equal / count}
    return of_all | means(totals) | {"rollout/dropped_groups": float(sample.dropped)}


def batch_metrics(batch: TrainBatch, algorithm: AlgorithmConfig) -> Metrics:
    """Return metrics of the policy before its update: means over the completion tokens of all
    ranks.

    With top_p, top_k or min_p, the engine renormalizes its log-probabilities over the kept tokens
    and the trainer does not, so ``rollout/engine_*`` also contain that effect. Entropies and engine
    metrics are absent if the engine's log-probabilities are used as old ones.
    """
    mask = batch.completion_mask
    sums: dict[str, Tensor | float] = {"": float(batch.completion_lengths.sum())}
    if batch.ref_logprobs is not None:
        penalty = kl_penalty(batch.old_logprobs, batch.ref_logprobs, algorithm)
        sums["policy/kl"] = (penalty * mask).sum()
    if algorithm.lopti_eta > 0:
        low = low_probability_tokens(batch.old_logprobs, mask, algorithm.lopti_eta)
        sums["policy/low_token_share"] = low.sum()
    if batch.entropies is not None:
        sums["policy/entropy"] = (batch.entropies * mask).sum()
    if batch.rollout_logprobs is not None:
        sums |= _engine_sums(batch, batch.rollout_logprobs, algorithm)
    return means(over_ranks((yield sums)))


def _engine_sums(
    batch: TrainBatch, rollout_logprobs: Tensor, algorithm: AlgorithmConfig
) -> dict[str, Tensor]:
    """Return the sums for the trainer-engine mismatch metrics."""
    mask = batch.completion_mask
    log_ratio = (batch.old_logprobs - rollout_logprobs) * mask
    difference = log_ratio.abs()
    sums = {
        "rollout/engine_logprob_diff": difference.sum(),
        "rollout/engine_ratio": (log_ratio.exp() * mask).sum(),
        "rollout/engine_logprob_diff_max": difference.max(),
    }
    correction = algorithm.engine_correction
    if correction is not None:
        weights = importance_weights(batch.old_logprobs, rollout_logprobs, mask, correction)
        cut_to = correction.cap if correction.rule == "truncate" else 0.0
        sums["rollout/importance_cut"] = (weights.eq(cut_to) * mask).sum()
    return sums


def update_metrics(statistics: UpdateStatistics, lr: float) -> Metrics:
    """Return metrics of the step's optimizer steps. Token fractions are over the updated tokens of
    all ranks.
    """
    sums = {
        "policy/clip_fraction": statistics.tokens.get("clipped", 0.0),
        "policy/dual_clip_fraction": statistics.tokens.get("dual_clipped", 0.0),
        "policy/approx_kl": statistics.tokens.get("approx_kl", 0.0),
        "policy/ratio_max": statistics.ratio_max,
        "": statistics.tokens.get("tokens", 0.0),
        "loss": statistics.loss,
        "computed": float(statistics.tokens_computed),
    }
    totals = over_ranks((yield sums))
    updates = max(1, statistics.updates)
    loss = float(totals.pop("loss"))
    computed = float(totals.pop("computed"))
    return means(totals) | {
        "policy/loss": loss / updates,
        "optim/grad_norm": statistics.grad_norm / updates,
        "optim/lr": lr,
        "optim/updates": float(statistics.updates),
        "optim/updates_skipped": float(statistics.skipped),
        "update/tokens_computed": computed,
    }


def memory_metrics(device: torch.device) -> Metrics:
    """Return the memory in use on the fullest GPU after an update, when torch's cache still holds
    the update's peak.
    """
    peak = peak_bytes(device) / 1e9
    return {"memory/peak": float(over_ranks((yield {"memory/peak": peak}))["memory/peak"])}


def time_metrics(stopwatch: Stopwatch, batch: TrainBatch, parallel: Parallel) -> dict[str, float]:
    """Return the duration of each phase on the slowest rank, and the completion tokens per second
    over all ranks.
    """
    local = (dict(stopwatch.seconds), float(batch.completion_lengths.sum()))
    seconds, tokens = zip(*parallel.gather([local]), strict=True)
    metrics = {
        f"time/{name}": max(of_rank[name] for of_rank in seconds)
        for name in sorted(stopwatch.seconds)
    }
    return metrics | {"time/tokens_per_s": sum(tokens) / metrics["time/step"]}
