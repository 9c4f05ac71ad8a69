"""Lp-Reg [arXiv:2510.03222]: protect low-probability tokens of completions with a negative
advantage.

trainer run base algorithm.loss=lp_reg
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainer.rules import (
    Gather,
    LossInputs,
    NonNegative,
    PolicyLoss,
    Probability,
    TokenLosses,
    TrainBatch,
)
from trainer.rules.losses.clipped import surrogate
from trainer.types import Tensor

if TYPE_CHECKING:
    import torch


class LpReg(PolicyLoss):
    """Pull low-probability tokens with ``A < 0`` toward a proxy distribution that gives them a
    higher probability.

    The loss is the clipped surrogate. At selected tokens whose probability is below the proxy's, it
    is ``-A r + coef k3`` with ``k3 = e^d - d - 1 <= 10``, ``d = log proxy - logprob``. The proxy is
    pi_old after min-p truncation at 0.02. The least probable tokens with ``A < 0`` are selected, if
    the proxy contains them. Same as the authors' code, which selects in every microbatch.
    """

    needs_distributions: ClassVar[bool] = True
    proxy_min_p: ClassVar[float] = 0.02

    name: Literal["lp_reg"] = "lp_reg"
    clip_ratio_low: Probability = Field(
        1.0, description="lower clip: the ratio is clipped at 1 - clip_ratio_low"
    )
    clip_ratio_high: NonNegative = Field(
        9.0, description="upper clip: the ratio is clipped at 1 + clip_ratio_high"
    )
    fraction: Probability = Field(
        0.01, description="fraction of the tokens with A < 0 that is protected"
    )
    coef: NonNegative = Field(1.0, description="weight of the penalty")

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: "torch.Generator | None"
    ) -> Tensor:
        from trainer.rules.selection import largest

        assert batch.proxy_logprobs is not None
        bad = tokens.bool() & (batch.advantages < 0)
        count = int(self.fraction * sum(gather([int(bad.sum())])))
        return (
            largest(-batch.old_logprobs.double(), bad, count, gather)
            & batch.proxy_logprobs.isfinite()
        )

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        ratio = tokens.log_ratio.exp()
        losses, clipped = surrogate(
            ratio, tokens.advantages, self.clip_ratio_low, self.clip_ratio_high
        )
        if tokens.chosen is None or tokens.proxy_logprobs is None:
            return TokenLosses(losses, clipped)
        current = tokens.logprobs.detach()
        pulled = tokens.chosen & (current < tokens.proxy_logprobs)
        distance = tokens.proxy_logprobs.where(pulled, current) - tokens.logprobs
        distance = distance.clamp(max=20.0)  # keeps exp() from overflowing
        penalty = self.coef * (distance.exp() - distance - 1).clamp(max=10.0)
        protected = -tokens.advantages * ratio + penalty
        return TokenLosses(protected.where(pulled, losses), clipped & ~pulled)
