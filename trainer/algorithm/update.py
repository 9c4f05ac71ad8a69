"""Optimizer steps over a rollout batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.algorithm.batching import UpdateBatch, lengths_to_mask, select_rows
from trainer.algorithm.loss import update_loss
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.optim import OptimConfig
from trainer.errors import check_finite
from trainer.parallel.ranks import Parallel
from trainer.policy.kept_forward import KeptForward
from trainer.policy.logprobs import TokenScores
from trainer.rules.inputs import LossInputs, UpdateTotals
from trainer.types import TrainBatch


def learning_rate(config: OptimConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of a training step (0-based): linear warm-up, then constant, linear
    or cosine to 0.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    progress = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    shares = {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
    }
    return config.lr * shares[config.lr_schedule]


@dataclass
class UpdateStatistics:
    """Sums over the optimizer steps of one training step; token counts and sums are those of this
    rank.
    """

    times_updated: Tensor  # [B, T], how often each token was in an optimizer step
    times_clipped: Tensor  # [B, T], how often its importance ratio was clipped then
    # Stay where they are computed: reading a number of a microbatch would let a GPU run idle.
    loss: Tensor  # [] float64
    ratio_max: Tensor  # []
    tokens: dict[str, Tensor] = field(default_factory=dict)
    grad_norm: float = 0.0
    updates: int = 0
    skipped: int = 0  # update batches of a pass that had no gradient
    # positions in the forwards of the passes, kept ones too, with prompts and padding
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
    """Takes optimizer steps on a policy: a `LogprobModel`, possibly wrapped by ``parallel``."""

    policy: nn.Module
    optimizer: Any
    algorithm: AlgorithmConfig
    max_grad_norm: float
    parallel: Parallel
    max_new_tokens: int
    kept_forward: KeptForward | None = None

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
        """Run one pass: an optimizer step per update batch on the tokens of ``token_mask`` [B, T].

        An update batch without a gradient is skipped, because it has no such token on any rank, or
        all of them are cut or clipped: Adam's momentum alone would move the weights. DeepSpeed's
        ZeRO steps in the second case.

        Raises:
            DivergedError: the gradient norm is not finite; the weights are those of the step
                before.
        """
        # rows are chosen on the host: no microbatch waits for the device
        in_pass = token_mask.cpu()
        # As `counted_tokens`, from lengths on the host.
        tokens = batch.completion_lengths * (1 - self.algorithm.mask_truncated * batch.truncated)
        counts = [
            [tokens[part.rows].sum(), len(part.rows), in_pass[part.rows].sum()] for part in plan
        ]
        everywhere = self.parallel.sum(torch.tensor(counts, dtype=torch.float64)).tolist()
        for update_batch, (total_tokens, total_sequences, pass_tokens) in zip(
            plan, everywhere, strict=True
        ):
            grad_norm = 0.0
            if pass_tokens > 0:
                totals = UpdateTotals(total_tokens, total_sequences, self.max_new_tokens)
                loss_sum = self._accumulate_gradients(
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

    def _accumulate_gradients(
        self,
        batch: TrainBatch,
        in_pass: Tensor,
        update_batch: UpdateBatch,
        totals: UpdateTotals,
        statistics: UpdateStatistics,
    ) -> Tensor:
        """Run forward and backward pass of every microbatch; return the loss of this rank's rows,
        [] float64.

        Rows without a token of the pass are not computed, and packed rows end with their last one:
        with causal attention what follows cannot matter. Beside other rows the same numbers are
        rounded otherwise, so that importance ratios of a pass over some of the tokens begin at 1 up
        to rounding only.
        """
        device = batch.input_ids.device
        loss_sum = torch.zeros_like(statistics.loss)
        asked = in_pass
        if self.algorithm.loss.whole_completions:  # a token's loss depends on the other tokens
            asked = lengths_to_mask(batch.completion_lengths) * in_pass.any(dim=1, keepdim=True)
        for index, rows in enumerate(update_batch.microbatches):
            rows = rows[asked[rows].any(dim=1)]
            kept = self.kept_forward.take(rows) if self.kept_forward else None
            takes_part_only = len(rows) == 0
            # without a gradient: a rank that has no tokens must not keep the others waiting
            if takes_part_only:
                rows = update_batch.stand_in
            part = select_rows(batch, rows)
            width = part.completion_mask.shape[1]
            needed = asked[rows, :width]
            token_mask = in_pass[rows, :width]
            if takes_part_only:
                needed = torch.eye(1, width)
                token_mask = token_mask * 0
            with self.parallel.microbatch(self.policy, index == len(update_batch.microbatches) - 1):
                scores: TokenScores = kept or self.policy(
                    part.input_ids, part.prompt_lengths, needed, self.algorithm.entropy_coef > 0
                )
                statistics.tokens_computed += scores.computed
                token_mask = token_mask.to(device, non_blocking=True)
                is_new = needed.to(device, non_blocking=True).bool()
                logprobs = torch.where(is_new, scores.logprobs, part.old_logprobs)
                # A kept forward has entropies, and a gradient of weight 0 through them costs as
                # much as any other.
                entropies = scores.entropies if self.algorithm.entropy_coef > 0 else None
                inputs = LossInputs.of(part, logprobs, token_mask, totals, entropies)
                output = update_loss(inputs, self.algorithm)
                self.parallel.backward(output.loss)
            loss_sum += output.loss.detach()
            rows = rows.to(device, non_blocking=True)
            statistics.times_updated[rows, :width] += inputs.token_mask
            statistics.times_clipped[rows, :width] += output.clipped
            statistics.add(output.metrics)
        return loss_sum
