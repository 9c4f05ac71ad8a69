"""Optimizer steps over a rollout batch."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from trainer.algorithm.batching import UpdateBatch, select_rows
from trainer.algorithm.loss import kl_penalty, token_weights, update_loss
from trainer.config.schema import AlgorithmConfig, OptimConfig
from trainer.errors import DivergedError
from trainer.metrics.bands import BANDS, clipped_by_band
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import TokenScores
from trainer.types import TrainBatch


@dataclass
class UpdateStatistics:
    """Sums over the optimizer steps of one training step; token sums are those of this rank."""

    loss: float = 0.0
    grad_norm: float = 0.0
    updates: int = 0
    tokens: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ratio_max: float = 0.0
    clipped_by_band: Tensor = field(default_factory=lambda: torch.zeros(2, len(BANDS), dtype=torch.float64))

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Take in the sums of one microbatch."""
        for name, value in metrics.items():
            if name != "ratio_max":
                self.tokens[name] += float(value)
        self.ratio_max = max(self.ratio_max, float(metrics["ratio_max"]))


class FirstForward:
    """Forwards of the first update batch with their graphs, from scoring to the first optimizer step.

    Until that step the weights do not move, so the forwards that gave its old log-probabilities are those its
    update would compute again.

    Args:
        max_tokens: rows x longest sequence, added over the microbatches whose graphs are held.
    """

    def __init__(self, max_tokens: int) -> None:
        self._room = max_tokens
        self._scores: dict[int, TokenScores] = {}

    def has_room(self, tokens: int) -> bool:
        """Whether a microbatch of so many tokens may be kept."""
        return tokens <= self._room

    def keep(self, index: int, scores: TokenScores, tokens: int) -> None:
        """Hold the scores of a microbatch of the first update batch that were computed with gradient."""
        self._room -= tokens
        self._scores[index] = scores

    def take(self, index: int) -> TokenScores | None:
        """What was kept of a microbatch, once: the graph goes with it."""
        return self._scores.pop(index, None)

    def clear(self) -> None:
        """Let go of everything: the weights have moved."""
        self._scores.clear()


def learning_rate(config: OptimConfig, step: int, total_steps: int) -> float:
    """The learning rate of a training step (0-based): linear warm-up, then constant, linear or cosine to 0."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    if config.lr_schedule == "constant":
        return config.lr
    progress = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    if config.lr_schedule == "linear":
        return config.lr * (1 - progress)
    return config.lr * 0.5 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def score_batch(
    model: nn.Module,
    batch: TrainBatch,
    plan: Sequence[UpdateBatch],
    with_entropy: bool,
    first: FirstForward | None = None,
) -> TokenScores:
    """Log-probabilities of all rows, computed in the microbatches in which they will be updated; [B, T].

    Args:
        model: a `LogprobModel`, possibly wrapped.
        batch: B rows.
        plan: update batches that cover them.
        with_entropy: also give entropies and gradient norms.
        first: keeps forwards of the first update batch.
    """
    logprobs = torch.zeros_like(batch.completion_mask)
    entropies = torch.zeros_like(batch.completion_mask)
    gradient_norms = torch.zeros_like(batch.completion_mask)
    for update_batch in plan:
        for index, rows in enumerate(update_batch.microbatches):
            part = select_rows(batch, rows if len(rows) else update_batch.stand_in)
            tokens = part.input_ids.numel()
            keeps_graph = first is not None and update_batch is plan[0] and first.has_room(tokens)
            with torch.set_grad_enabled(keeps_graph):
                scores: TokenScores = model(
                    part.input_ids, part.prompt_lengths, part.completion_mask, with_entropy
                )
            if first is not None and keeps_graph:
                first.keep(index, scores, tokens)
            if len(rows) == 0:
                continue
            width = part.completion_mask.shape[1]
            logprobs[rows, :width] = scores.logprobs.detach()
            if scores.entropies is not None and scores.gradient_norms is not None:
                entropies[rows, :width] = scores.entropies
                gradient_norms[rows, :width] = scores.gradient_norms
    return TokenScores(logprobs, entropies, gradient_norms) if with_entropy else TokenScores(logprobs, None)


def attach_logprobs(
    batch: TrainBatch,
    policy: nn.Module,
    reference: nn.Module | None,
    plan: Sequence[UpdateBatch],
    first: FirstForward | None = None,
) -> tuple[TrainBatch, TokenScores]:
    """The batch with ``old_logprobs`` and ``ref_logprobs``, and the policy's scores with entropies [B, T]."""
    scores = score_batch(policy, batch, plan, with_entropy=True, first=first)
    ref_logprobs = (
        score_batch(reference, batch, plan, with_entropy=False).logprobs if reference is not None else None
    )
    return replace(batch, old_logprobs=scores.logprobs, ref_logprobs=ref_logprobs), scores


def update_policy(
    policy: nn.Module,
    optimizer: Any,
    batch: TrainBatch,
    token_mask: Tensor,
    plan: Sequence[UpdateBatch],
    algorithm: AlgorithmConfig,
    max_grad_norm: float,
    parallel: Parallel,
    statistics: UpdateStatistics,
    step: int,
    first: FirstForward | None = None,
) -> None:
    """One pass: an optimizer step per update batch on the tokens of ``token_mask`` [B, T].

    An update batch with no such token on any rank is skipped: without a gradient, Adam's momentum alone would
    move the weights.

    Raises:
        DivergedError: the loss or the gradient norm is not finite; the weights are those of the step before.
    """
    for update_batch in plan:
        rows = update_batch.rows
        mask = batch.completion_mask[rows]
        counts = torch.stack([mask.sum(), mask.new_tensor(len(rows)), token_mask[rows].sum()]).double()
        total_tokens, total_sequences, pass_tokens = parallel.sum(counts).tolist()
        if pass_tokens == 0:
            continue
        loss_sum = torch.zeros((), dtype=torch.float64, device=mask.device)
        for index, micro_rows in enumerate(update_batch.microbatches):
            part = select_rows(batch, micro_rows if len(micro_rows) else update_batch.stand_in)
            with parallel.microbatch(policy, index == len(update_batch.microbatches) - 1):
                kept = first.take(index) if first is not None and update_batch is plan[0] else None
                scores = kept or policy(part.input_ids, part.prompt_lengths, part.completion_mask)
                if len(micro_rows) == 0:
                    parallel.backward(scores.logprobs.sum() * 0.0)
                    continue
                output = update_loss(
                    scores.logprobs,
                    part.old_logprobs,
                    part.ref_logprobs,
                    part.rollout_logprobs,
                    part.advantages,
                    token_weights(part.completion_mask, algorithm.loss_aggregation, total_tokens, total_sequences),
                    token_mask[micro_rows, : part.completion_mask.shape[1]],
                    algorithm,
                )
                parallel.backward(output.loss)
            loss_sum += output.loss.detach()
            statistics.add(output.metrics)
            statistics.clipped_by_band += clipped_by_band(
                scores.logprobs,
                part.old_logprobs,
                part.advantages,
                token_mask[micro_rows, : part.completion_mask.shape[1]],
                algorithm,
            ).cpu()
        if first is not None:
            first.clear()
        loss = float(parallel.sum(loss_sum))
        grad_norm = parallel.step(policy, optimizer, max_grad_norm)
        for quantity, number in (("loss", loss), ("gradient norm", grad_norm)):
            if not math.isfinite(number):
                raise DivergedError(step, quantity, number)
        statistics.loss += loss
        statistics.grad_norm += grad_norm
        statistics.updates += 1


def kl_sum(batch: TrainBatch, algorithm: AlgorithmConfig) -> Tensor:
    """Sum over completion tokens of the KL estimate of the policy before its update; []."""
    assert batch.ref_logprobs is not None
    penalty = kl_penalty(batch.old_logprobs, batch.ref_logprobs, algorithm.kl_estimator)
    return (penalty * batch.completion_mask).sum()
