"""Optimizer steps on a rollout batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from loptune.errors import check_finite
from trainer.algorithm.batching import UpdateBatch, lengths_to_mask, select_rows
from trainer.algorithm.loss import update_loss
from trainer.algorithm.passes import counted_completions
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.optim import OptimConfig
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import CachedForward, TokenScores
from trainer.rules.interface import LossInputs, UpdateTotals
from trainer.types import TrainBatch


def learning_rate(config: OptimConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of a 0-based training step: linear warm-up, then constant, or linear
    or cosine decay to 0.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    progress = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    fractions = {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
    }
    return config.lr * fractions[config.lr_schedule]


@dataclass
class UpdateStatistics:
    """Sums over the optimizer steps of one training step. Token counts and sums are local to this
    rank.
    """

    times_updated: Tensor  # [B, T], number of optimizer steps that each token was in
    # [B, T], number of optimizer steps in which each token's importance ratio was clipped
    times_clipped: Tensor
    # Kept on the device: reading a value after every microbatch would stall the GPU.
    loss: Tensor  # [] float64
    ratio_max: Tensor  # []
    # sums of the loss metrics over the updated tokens, see `update_loss`
    tokens: dict[str, Tensor] = field(default_factory=dict)
    grad_norm: float = 0.0
    updates: int = 0
    skipped: int = 0  # update batches without a gradient
    # positions in the forward passes, cached ones included, with prompts and padding
    tokens_computed: int = 0

    @classmethod
    def of(cls, batch: TrainBatch) -> "UpdateStatistics":
        """Return empty statistics for a batch."""
        zeros = torch.zeros_like(batch.completion_mask)
        return cls(
            zeros, zeros.clone(), zeros.new_zeros((), dtype=torch.float64), zeros.new_zeros(())
        )

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add the sums of one microbatch."""
        for name, value in metrics.items():
            if name != "ratio_max":
                self.tokens[name] = value.double() + self.tokens.get(name, 0.0)
        self.ratio_max = torch.maximum(self.ratio_max, metrics["ratio_max"])


@dataclass
class Updater:
    """Optimizer steps on the policy, a `LogprobModel` that ``parallel`` may have wrapped."""

    policy: nn.Module
    optimizer: Any
    algorithm: AlgorithmConfig
    max_grad_norm: float
    parallel: Parallel
    max_new_tokens: int
    cached_forward: CachedForward | None = None

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the following optimizer steps."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def run_pass(
        self,
        batch: TrainBatch,
        token_mask: Tensor,
        plan: Sequence[UpdateBatch],
        statistics: UpdateStatistics,
        step: int,
    ) -> None:
        """Run one pass: one optimizer step per update batch, on the tokens of ``token_mask`` [B,
        T].

        An update batch without a gradient is skipped, so that Adam's momentum alone does not move
        the weights. This happens if no rank has a token of the pass, or if all tokens are masked or
        clipped. In the second case DeepSpeed takes the step anyway.

        Raises:
            DivergedError: the gradient norm is not finite; the error shows the loss instead if the
                loss is not finite, either. The weights are unchanged.
        """
        # select rows on the host, so that no microbatch synchronizes with the device
        in_pass = token_mask.cpu()
        # same count as `denominator_mask`, from lengths on the host
        tokens = batch.completion_lengths * counted_completions(batch, self.algorithm)
        counts = [
            [tokens[part.rows].sum(), len(part.rows), in_pass[part.rows].sum()] for part in plan
        ]
        global_counts = self.parallel.sum(torch.tensor(counts, dtype=torch.float64)).tolist()
        for update_batch, (total_tokens, total_sequences, pass_tokens) in zip(
            plan, global_counts, strict=True
        ):
            grad_norm = 0.0
            if pass_tokens > 0:
                totals = UpdateTotals(total_tokens, total_sequences, self.max_new_tokens)
                loss_sum = self.accumulate_gradients(
                    batch, in_pass, update_batch, totals, statistics
                )
                grad_norm = self.parallel.step(self.policy, self.optimizer, self.max_grad_norm)
                if not math.isfinite(grad_norm):
                    check_finite(step, "loss", float(self.parallel.sum(loss_sum)))
                    check_finite(step, "gradient norm", grad_norm)
                statistics.loss += loss_sum
                statistics.grad_norm += grad_norm
                statistics.updates += grad_norm > 0
            statistics.skipped += grad_norm == 0

    def accumulate_gradients(
        self,
        batch: TrainBatch,
        in_pass: Tensor,
        update_batch: UpdateBatch,
        totals: UpdateTotals,
        statistics: UpdateStatistics,
    ) -> Tensor:
        """Run forward and backward on every microbatch. Return the loss of this rank's rows, []
        float64.

        Rows without a token of the pass are skipped, and packed rows end at their last token of the
        pass: with causal attention later tokens have no effect. The rounding depends on the other
        rows of the microbatch, so in a pass over some of the tokens importance ratios start at 1
        only up to rounding.
        """
        device = batch.input_ids.device
        loss_sum = torch.zeros_like(statistics.loss)
        needed_tokens = in_pass
        # a sequence-level loss of a token depends on the completion's other tokens
        if self.algorithm.needs_sequence_level:
            needed_tokens = lengths_to_mask(batch.completion_lengths) * in_pass.any(
                dim=1, keepdim=True
            )
        for index, rows in enumerate(update_batch.microbatches):
            rows = rows[needed_tokens[rows].any(dim=1)]
            cached = self.cached_forward.take(rows) if self.cached_forward else None
            is_dummy = len(rows) == 0
            # a rank without tokens runs a dummy row, so that the collectives of the others do not
            # hang
            if is_dummy:
                rows = update_batch.dummy_row
            part = select_rows(batch, rows)
            width = part.completion_mask.shape[1]
            needed = needed_tokens[rows, :width]
            token_mask = in_pass[rows, :width]
            if is_dummy:
                needed = torch.eye(1, width)
                token_mask = token_mask * 0
            with self.parallel.microbatch(self.policy, index == len(update_batch.microbatches) - 1):
                scores: TokenScores = cached or self.policy(
                    part.input_ids, part.prompt_lengths, needed, self.algorithm.needs_entropies
                )
                statistics.tokens_computed += scores.computed
                inputs = self._loss_inputs(part, scores, needed, token_mask, totals)
                output = update_loss(inputs, self.algorithm)
                self.parallel.backward(output.loss)
            loss_sum += output.loss.detach()
            rows = rows.to(device, non_blocking=True)
            statistics.times_updated[rows, :width] += inputs.token_mask
            statistics.times_clipped[rows, :width] += output.clipped
            statistics.add(output.metrics)
        return loss_sum

    def _loss_inputs(
        self,
        part: TrainBatch,
        scores: TokenScores,
        needed: Tensor,
        token_mask: Tensor,
        totals: UpdateTotals,
    ) -> LossInputs:
        """Return the loss's inputs for some rows. Tokens outside ``needed`` [b, T] were not scored
        and keep the log-probabilities and entropies of the old policy.
        """
        device = part.input_ids.device
        token_mask = token_mask.to(device, non_blocking=True)
        is_new = needed.to(device, non_blocking=True).bool()
        logprobs = torch.where(is_new, scores.logprobs, part.old_logprobs)
        # A cached forward always has entropies. Leave them out if nothing reads them, because a
        # gradient with weight 0 costs as much as any other.
        entropies = None
        if self.algorithm.needs_entropies:
            assert scores.entropies is not None
            entropies = scores.entropies
            if part.entropies is not None:
                entropies = torch.where(is_new, scores.entropies, part.entropies)
        return LossInputs.of(part, logprobs, token_mask, totals, entropies)
