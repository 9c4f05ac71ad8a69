"""Optimizer steps over a rollout batch."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.algorithm.asked import asked_tokens, cut_rows, tokens_to_compute
from trainer.algorithm.batching import UpdateBatch, select_rows
from trainer.algorithm.first_forwards import FirstForwards
from trainer.algorithm.loss import update_loss
from trainer.algorithm.loss_inputs import LossInputs, UpdateTotals
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.schema import OptimConfig
from trainer.errors import DivergedError
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import TokenScores
from trainer.types import TrainBatch


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


@dataclass
class UpdateStatistics:
    """Sums over the optimizer steps of one training step; token counts and sums are those of this rank."""

    times_updated: Tensor  # [B, T], how often each token was in an optimizer step
    times_clipped: Tensor  # [B, T], how often its importance ratio was clipped then
    loss: float = 0.0
    grad_norm: float = 0.0
    updates: int = 0
    tokens_computed: int = 0  # positions that the passes ran the model on, prompts and padding included
    tokens_needed: int = 0  # those up to the last updated token of each row, every prompt once
    first: FirstForwards | None = None  # where no forward was done before the update
    # Stay where they are computed: reading a number of a microbatch would let a GPU run idle.
    tokens: dict[str, Tensor] = field(default_factory=lambda: defaultdict(lambda: torch.zeros(())))
    ratio_max: Tensor = field(default_factory=lambda: torch.zeros(()))

    @classmethod
    def of(cls, batch: TrainBatch) -> "UpdateStatistics":
        """Those of a batch that has not been updated on."""
        return cls(
            torch.zeros_like(batch.completion_mask),
            torch.zeros_like(batch.completion_mask),
            first=FirstForwards.of(batch) if batch.rollout_logprobs is None else None,
        )

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add the sums of one microbatch."""
        for name, value in metrics.items():
            if name != "ratio_max":
                self.tokens[name] = self.tokens[name].to(value.device) + value.double()
        self.ratio_max = torch.maximum(self.ratio_max.to(value.device), metrics["ratio_max"])


class Updater:
    """Takes optimizer steps on a policy.

    Args:
        policy: a `LogprobModel`, possibly wrapped by ``parallel``.
        optimizer: of its parameters.
        algorithm: the loss.
        max_grad_norm: gradients are scaled down to this norm.
        parallel: the ranks that share an update batch.
        max_new_tokens: that a completion may have, the constant of Dr. GRPO's aggregation.
    """

    def __init__(
        self,
        policy: nn.Module,
        optimizer: Any,
        algorithm: AlgorithmConfig,
        max_grad_norm: float,
        parallel: Parallel,
        max_new_tokens: int,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.algorithm = algorithm
        self.max_grad_norm = max_grad_norm
        self.parallel = parallel
        self.max_new_tokens = max_new_tokens

    def set_learning_rate(self, lr: float) -> None:
        """The learning rate of the following optimizer steps."""
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
        """One pass: an optimizer step per update batch on the tokens of ``token_mask`` [B, T].

        An update batch with no such token on any rank is skipped: without a gradient, Adam's momentum alone
        would move the weights.

        Args:
            batch: scored, with advantages.
            token_mask: [B, T], 1 at the tokens of the pass.
            plan: its update batches.
            statistics: of the training step; the pass is added to them.
            step: the training step, for the error.

        Raises:
            DivergedError: the loss or the gradient norm is not finite; the weights are those of the step before.
        """
        for update_batch in plan:
            rows = update_batch.rows
            mask = batch.completion_mask[rows]
            counts = torch.stack([mask.sum(), mask.new_tensor(len(rows)), token_mask[rows].sum()]).double()
            total_tokens, total_sequences, pass_tokens = self.parallel.sum(counts).tolist()
            if pass_tokens > 0:
                totals = UpdateTotals(total_tokens, total_sequences, self.max_new_tokens)
                loss_sum = self._accumulate_gradients(batch, token_mask, update_batch, totals, statistics)
                loss = float(self.parallel.sum(loss_sum))
                grad_norm = self.parallel.step(self.policy, self.optimizer, self.max_grad_norm)
                for quantity, number in (("loss", loss), ("gradient norm", grad_norm)):
                    if not math.isfinite(number):
                        raise DivergedError(step, quantity, number)
                statistics.loss += loss
                statistics.grad_norm += grad_norm
                statistics.updates += 1
            update_batch.kept.discard()

    def _accumulate_gradients(
        self,
        batch: TrainBatch,
        token_mask: Tensor,
        update_batch: UpdateBatch,
        totals: UpdateTotals,
        statistics: UpdateStatistics,
    ) -> Tensor:
        """Forward and backward pass of every microbatch; the loss of this rank's rows, [] float64.

        Rows without a token of the pass, and what stands behind the last one of a row, are not computed: with
        causal attention they cannot matter. Beside other rows the same numbers are rounded otherwise, so that
        importance ratios of a pass over some of the tokens begin at 1 up to rounding only.
        """
        loss_sum = torch.zeros((), dtype=torch.float64, device=token_mask.device)
        asked = asked_tokens(token_mask, batch.completion_mask, self.algorithm)
        statistics.tokens_needed += tokens_to_compute(batch, asked, update_batch.rows)
        for index, rows in enumerate(update_batch.microbatches):
            kept = update_batch.kept.take(index)
            if kept is None:
                rows = rows[asked[rows].any(dim=1)]
            with self.parallel.microbatch(self.policy, index == len(update_batch.microbatches) - 1):
                if len(rows) == 0:
                    self._take_part(batch, update_batch.stand_in, statistics)
                    continue
                part = select_rows(batch, rows)
                width = part.completion_mask.shape[1]
                scores = kept or self._score(part, rows, asked[rows, :width], statistics)
                statistics.tokens_computed += scores.computed
                inputs = LossInputs.of(part, scores.logprobs, token_mask[rows, :width], totals)
                output = update_loss(inputs, self.algorithm)
                self.parallel.backward(output.loss)
            loss_sum += output.loss.detach()
            statistics.times_updated[rows, :width] += inputs.token_mask
            statistics.times_clipped[rows, :width] += output.clipped
            statistics.add(output.metrics)
        return loss_sum

    def _score(self, part: TrainBatch, rows: Tensor, asked: Tensor, statistics: UpdateStatistics) -> TokenScores:
        """Log-probabilities with gradient where they are asked for, and the old ones elsewhere, [b, T]."""
        first = statistics.first
        is_first = first is not None and first.wants(rows, asked)
        scores: TokenScores = self.policy(*cut_rows(part, asked), is_first)
        if first is not None and is_first:
            first.add(rows, asked, scores, is_unmoved=statistics.updates == 0)
        behind = asked.shape[1] - scores.logprobs.shape[1]
        logprobs = torch.nn.functional.pad(scores.logprobs, (0, behind))
        return scores._replace(logprobs=torch.where(asked.bool(), logprobs, part.old_logprobs))

    def _take_part(self, batch: TrainBatch, row: Tensor, statistics: UpdateStatistics) -> None:
        """Forward and backward without a gradient: a rank that has no tokens must not keep the others waiting."""
        stand_in = select_rows(batch, row)
        first = torch.zeros_like(stand_in.completion_mask)
        first[:, 0] = 1
        scores: TokenScores = self.policy(*cut_rows(stand_in, first))
        statistics.tokens_computed += scores.computed
        self.parallel.backward(scores.logprobs.sum() * 0.0)
