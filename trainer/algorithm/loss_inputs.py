"""Inputs and outputs of a policy loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from trainer.config.algorithm import AlgorithmConfig
from trainer.types import TrainBatch

MAX_LOG_RATIO = 20.0  # exp() of more overflows in float32 and makes the gradient NaN, whatever clips the ratio


class UpdateTotals(NamedTuple):
    """Size of an update batch over all microbatches and ranks: the denominators of its loss.

    So neither gradient accumulation nor data parallelism changes the loss. They count the tokens of
    `counted_tokens`, also those that a filter or an isolation pass leaves out.
    """

    tokens: float
    sequences: float
    max_tokens: float = 1.0  # that a completion may have: the constant of Dr. GRPO


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Some rows of an update batch in one pass. Fields [B, T] are aligned with the completion tokens."""

    logprobs: Tensor  # [B, T], with gradient
    old_logprobs: Tensor  # [B, T], 0 outside the completions
    ref_logprobs: Tensor | None  # [B, T]
    rollout_logprobs: Tensor | None  # [B, T], 0 outside the completions; None where they are the old ones
    advantages: Tensor  # [B, T]
    completion_mask: Tensor  # [B, T]
    token_mask: Tensor  # [B, T], 1 at the tokens of the pass
    totals: UpdateTotals
    chosen: Tensor | None = None  # [B, T] bool, tokens that the loss singles out
    proxy_logprobs: Tensor | None = None  # [B, T], of Lp-Reg's proxy
    entropies: Tensor | None = None  # [B, T], with gradient; None where no bonus asks for them

    @classmethod
    def of(
        cls,
        rows: TrainBatch,
        logprobs: Tensor,
        token_mask: Tensor,
        totals: UpdateTotals,
        entropies: Tensor | None = None,
    ) -> "LossInputs":
        """The inputs of some rows [B, T] of a scored batch with advantages."""
        return cls(
            logprobs=logprobs,
            old_logprobs=rows.old_logprobs,
            ref_logprobs=rows.ref_logprobs,
            rollout_logprobs=rows.rollout_logprobs,
            advantages=rows.advantages,
            completion_mask=rows.completion_mask,
            token_mask=token_mask,
            totals=totals,
            chosen=rows.chosen,
            proxy_logprobs=rows.proxy_logprobs,
            entropies=entropies,
        )

    @property
    def log_ratio(self) -> Tensor:
        """``logprob - old_logprob`` within ±20, with gradient inside of it, [B, T]."""
        return (self.logprobs - self.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


class TokenLosses(NamedTuple):
    """The losses of single tokens, before they are weighted, and which of them the rule holds back."""

    losses: Tensor  # [B, T], with gradient
    clipped: Tensor  # [B, T] bool
    dual_clipped: Tensor  # [B, T] bool


PolicyLoss = Callable[[LossInputs, AlgorithmConfig], TokenLosses]
