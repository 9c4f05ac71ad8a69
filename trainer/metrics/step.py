"""Metrics of a training step, and a stopwatch for its phases.

The metrics are read from all ranks with one device transfer and one collective.
"""

import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from loptune.declared_metrics import METRICS, declaration
from trainer.algorithm.loss import kl_penalty
from trainer.algorithm.passes import low_probability_tokens
from trainer.algorithm.rollout_correction import importance_weights
from trainer.algorithm.update import UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.parallel.device import memory_in_use
from trainer.parallel.ranks import Parallel
from trainer.rules.groups import has_varied_rewards
from trainer.types import SampledGroups, TrainBatch, all_rollouts

# A generator that yields this rank's values on their device, receives the values of all ranks
# (float64 on the host), and returns metrics. A value is a metric before the reduction that
# `declared_metrics.yaml` lists, or a sum or count from which metrics are computed.
Metrics = Generator[Mapping[str, Tensor | float], list[dict[str, Tensor]], dict[str, float]]


def read_metrics(metrics: Sequence[Metrics], parallel: Parallel) -> dict[str, float]:
    """Run the metric generators with one device transfer and one collective, and merge their
    results.
    """
    of_rank: list[dict[str, Tensor]] = []
    for reader in metrics:
        values = next(reader)
        of_rank.append(
            {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}
        )
    _move_to_host(of_rank)
    everyone: list[list[dict[str, Tensor]]] = parallel.gather([of_rank])
    result: dict[str, float] = {}
    for reader, of_ranks in zip(metrics, zip(*everyone, strict=True), strict=True):
        try:
            reader.send(list(of_ranks))
        except StopIteration as end:
            result |= end.value
    return result


def _move_to_host(values: Sequence[dict[str, Tensor]]) -> None:
    """Replace the tensors on the device by copies on the host, with one transfer."""
    places = []
    for index, tensors in enumerate(values):
        for name, tensor in tensors.items():
            if tensor.device.type != "cpu":
                places.append((index, name))
    if not places:
        return
    on_device = torch.cat([values[index][name].flatten() for index, name in places])
    remaining = on_device.cpu()
    for index, name in places:
        tensor = values[index][name]
        values[index][name] = remaining[: tensor.numel()].view_as(tensor)
        remaining = remaining[tensor.numel() :]


def over_ranks(everyone: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Reduce the values of ``everyone``, one mapping per rank: by maximum if the metric is declared
    so, else by their sum.
    """
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for of_rank in everyone:
        for name, value in of_rank.items():
            parts[name].append(value)
    reduced = {}
    for name, values in parts.items():
        stacked = torch.stack(values)
        reduced[name] = stacked.amax(dim=0) if is_maximum(name) else stacked.sum(dim=0)
    return reduced


def is_maximum(name: str) -> bool:
    """Return whether ``name`` is a metric that is reduced by maximum."""
    return name in METRICS and METRICS[name].reduction == "max"


def metric_values(totals: Mapping[str, Tensor], count: float) -> dict[str, float]:
    """Return the values of metrics from their totals over ranks. A mean is a total divided by
    ``count``, or by 1 if nothing was counted; a sum or maximum is the total itself.

    Raises:
        KeyError: undeclared metric.
    """
    divisor = max(count, 1.0)
    values = {}
    for name, total in totals.items():
        is_mean = declaration(name).reduction == "mean"
        values[name] = float(total) / divisor if is_mean else float(total)
    return values


def rollout_metrics(sample: SampledGroups, has_stop_strings: bool = False) -> Metrics:
    """Return the ``rollout/*`` and ``reward/*`` metrics of a step, with ``rollout/stop_strings`` if
    the run has stop strings.
    """
    groups = sample.sampled
    rollouts = all_rollouts(groups)
    rewards = torch.tensor([[r.reward for r in group.rollouts] for group in groups])  # [groups, G]
    spread = rewards.std(dim=1) if rewards.shape[1] > 1 else torch.zeros(len(groups))
    sums: dict[str, Tensor | float] = defaultdict(float)
    sums["rollout/reward"] = float(rewards.sum())
    sums["rollout/accuracy"] = sum(r.correct for r in rollouts)
    sums["rollout/completion_length"] = sum(len(r.completion.token_ids) for r in rollouts)
    sums["rollout/truncated"] = sum(r.completion.finish_reason == "length" for r in rollouts)
    if has_stop_strings:
        sums["rollout/stop_strings"] = sum(bool(r.completion.stop_string) for r in rollouts)
    sums["reward/timeouts"] = sum(r.scoring == "timeout" for r in rollouts)
    sums["reward/errors"] = sum(r.scoring == "error" for r in rollouts)
    sums["reward/format_failures"] = sum(not r.parsed for r in rollouts)
    for r in rollouts:
        for part, value in r.reward_breakdown.items():
            sums[f"reward/component/{part}"] += value
    zero_variance = [not has_varied_rewards(of_group) for of_group in rewards.tolist()]
    sums_over_groups: dict[str, Tensor | float] = {
        "rollout/reward_std": spread.sum(),
        "rollout/zero_variance_groups": sum(zero_variance),
    }
    counts: dict[str, Tensor | float] = {"completions": len(rollouts), "groups": len(groups)}
    totals = over_ranks((yield sums | sums_over_groups | counts))
    groups_in_all = float(totals.pop("groups"))
    completions = float(totals.pop("completions"))
    totals_over_groups = {name: totals.pop(name) for name in sums_over_groups}
    metrics = metric_values(totals_over_groups, groups_in_all) | metric_values(totals, completions)
    return metrics | {
        "rollout/dropped_groups": float(sample.dropped),
        "rollout/completions": completions,
        "rollout/tokens": float(totals["rollout/completion_length"]),
    }


def batch_metrics(batch: TrainBatch, algorithm: AlgorithmConfig) -> Metrics:
    """Return metrics of the policy before its update: means over the completion tokens of all
    ranks, and the maximum for ``rollout/engine_logprob_diff_max``.

    With top_p, top_k or min_p, the engine renormalizes its log-probabilities over the kept tokens
    and the trainer does not, so ``rollout/engine_*`` also contain that effect. Entropies and engine
    metrics are absent if the engine's log-probabilities are used as old ones.
    """
    mask = batch.completion_mask
    sums: dict[str, Tensor | float] = {"tokens": float(batch.completion_lengths.sum())}
    if batch.ref_logprobs is not None:
        penalty = kl_penalty(batch.old_logprobs, batch.ref_logprobs, algorithm)
        sums["policy/kl"] = (penalty * mask).sum()
    if algorithm.lopti_eta > 0:
        low = low_probability_tokens(batch.old_logprobs, mask, algorithm.lopti_eta)
        sums["policy/low_token_fraction"] = low.sum()
    if batch.entropies is not None:
        sums["policy/entropy"] = (batch.entropies * mask).sum()
    if batch.rollout_logprobs is not None:
        sums |= _engine_sums(batch, batch.rollout_logprobs, algorithm)
    totals = over_ranks((yield sums))
    tokens = float(totals.pop("tokens"))
    return metric_values(totals, count=tokens)


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
    corrections = algorithm.rollout_corrections
    if corrections:
        corrected = importance_weights(batch.old_logprobs, rollout_logprobs, mask, corrections)
        sums["rollout/importance_cut"] = (corrected.is_cut * mask).sum()
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
        "update/tokens_computed": float(statistics.tokens_computed),
        "loss": statistics.loss,
        "tokens": statistics.tokens.get("tokens", 0.0),
    }
    totals = over_ranks((yield sums))
    updates = max(1, statistics.updates)
    loss = float(totals.pop("loss"))
    tokens = float(totals.pop("tokens"))
    return metric_values(totals, count=tokens) | {
        "policy/loss": loss / updates,
        "optim/grad_norm": statistics.grad_norm / updates,
        "optim/lr": lr,
        "optim/updates": float(statistics.updates),
        "optim/updates_skipped": float(statistics.skipped),
    }


def memory_metrics(device: torch.device) -> Metrics:
    """Return the memory in use on the fullest GPU after an update, while torch's cache still holds
    the update's peak.
    """
    peak = memory_in_use(device) / 1e9
    totals = over_ranks((yield {"memory/peak": peak}))
    return metric_values(totals, count=1)


class Stopwatch:
    """Timer that accumulates the seconds of named phases: ``with stopwatch("rollout"): ...``.

    Synchronizes with the GPU at both ends of a phase, so that asynchronous work is timed in its
    own phase.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the enclosed block as part of ``phase``."""
        _wait_for_gpu()
        started = time.perf_counter()
        try:
            yield
        finally:
            _wait_for_gpu()
            self.seconds[phase] += time.perf_counter() - started


def _wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def time_metrics(stopwatch: Stopwatch, batch: TrainBatch, parallel: Parallel) -> dict[str, float]:
    """Return the duration of each phase on the slowest rank, and the completion tokens per second
    over all ranks.
    """
    local = (dict(stopwatch.seconds), float(batch.completion_lengths.sum()))
    seconds, tokens = zip(*parallel.gather([local]), strict=True)
    metrics = {}
    for name in sorted(stopwatch.seconds):
        metrics[f"time/{name}"] = max(of_rank[name] for of_rank in seconds)
    return metrics | {"time/tokens_per_s": sum(tokens) / metrics["time/step"]}
