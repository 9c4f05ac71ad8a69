"""Inputs and outputs of rules.

Nothing here imports torch, and no built-in rule does: reading a configuration takes its rules'
parameters from their classes, and must not wait seconds for torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

from trainer.types import Tensor, TrainBatch

SumOverRanks = Callable[[Tensor], Tensor]
Gather = Callable[[list[Any]], list[Any]]

# exp() of more overflows in float32 and makes the gradient NaN, whatever clips the ratio
MAX_LOG_RATIO = 20.0


class UpdateTotals(NamedTuple):
    """Size of an update batch over all microbatches and ranks: the denominators of its loss.

    So neither gradient accumulation nor data parallelism changes the loss. They count the tokens of
    `counted_tokens`, also those that a filter or an isolation pass leaves out.
    """

    tokens: float
    sequences: float
    max_tokens: float = 1.0  # that a completion may have: the constant of Dr. GRPO


@dataclass(frozen=True, kw_only=True)
class AdvantageInputs:
    """The scored completions of a training step on this rank; a group's completions are all on one
    rank.
    """

    rewards: Tensor  # [B] float32, on the host
    group_ids: Tensor  # [B] int64, on the host
    completion_mask: Tensor  # [B, T]
    old_logprobs: Tensor  # [B, T], 0 outside the completions
    ref_logprobs: Tensor | None  # [B, T]
    # [B, T], of the policy before its update; None where nothing was recomputed
    entropies: Tensor | None
    reward_parts: Sequence[Mapping[str, float]]  # [B], weighted parts of each reward
    part_weights: Mapping[str, float]
    kl_coef: float  # of the KL penalty where it is placed in the reward, else 0
    sum_over_ranks: SumOverRanks

    @classmethod
    def of(cls, batch: TrainBatch, kl_coef: float, sum_over_ranks: SumOverRanks) -> Self:
        """Return the inputs of a scored batch."""
        return cls(**_shared(cls, batch), kl_coef=kl_coef, sum_over_ranks=sum_over_ranks)


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Some rows of an update batch in one pass. Fields [B, T] are aligned with the completion
    tokens.
    """

    logprobs: Tensor  # [B, T], with gradient
    old_logprobs: Tensor  # [B, T], 0 outside the completions
    ref_logprobs: Tensor | None  # [B, T]
    # [B, T], 0 outside the completions; None where they are the old ones
    rollout_logprobs: Tensor | None
    advantages: Tensor  # [B, T]
    completion_mask: Tensor  # [B, T]
    token_mask: Tensor  # [B, T], 1 at the tokens of the pass
    totals: UpdateTotals
    chosen: Tensor | None = None  # [B, T] bool, tokens that `PolicyLoss.choose` singled out
    # [B, T], of the proxy that `PolicyLoss.proxy_min_p` asks for
    proxy_logprobs: Tensor | None = None
    entropies: Tensor | None = None  # [B, T], with gradient; None where no bonus asks for them

    @classmethod
    def of(
        cls,
        rows: TrainBatch,
        logprobs: Tensor,
        token_mask: Tensor,
        totals: UpdateTotals,
        entropies: Tensor | None = None,
    ) -> Self:
        """Return the inputs of some rows [B, T] of a scored batch with advantages."""
        shared = {**_shared(cls, rows), "entropies": entropies}
        return cls(**shared, logprobs=logprobs, token_mask=token_mask, totals=totals)

    @property
    def log_ratio(self) -> Tensor:
        """``logprob - old_logprob`` within ±20, with gradient inside of it, [B, T]."""
        return (self.logprobs - self.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _shared(kind: type[Any], batch: TrainBatch) -> dict[str, Any]:
    """Return the fields that a batch has in common with a rule's inputs."""
    return {
        field.name: getattr(batch, field.name)
        for field in fields(kind)
        if hasattr(batch, field.name)
    }


class TokenLosses(NamedTuple):
    """The losses of single tokens, before they are weighted, and which of them the rule
    holds back.
    """

    losses: Tensor  # [B, T], with gradient
    clipped: Tensor | bool = False  # [B, T] bool; False: nowhere
    dual_clipped: Tensor | bool = False  # [B, T] bool; False: nowhere
