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


_PROXY_MIN_P = 0.02  # the proxy drops tokens below this fraction of the largest probability


class LpReg(PolicyLoss):
    """Pull low-probability tokens with ``A < 0`` toward a proxy distribution that gives them a
    higher probability.

    The loss is the clipped surrogate. At selected tokens whose probability is below the proxy's, it
    is ``-A r + coef k3`` with ``k3 = e^d - d - 1 <= 10``, ``d = log proxy - logprob``. The proxy is
    pi_old after min-p truncation at 0.02. The least probable tokens with ``A < 0`` are selected, if
    the proxy contains them. Same as the authors' code, which selects in every microbatch.
    """

    needs_distributions: ClassVar[bool] = True

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

    def token_statistic(self, probabilities: Tensor, tokens: Tensor) -> Tensor:
        """Return the log-probability of each token under the proxy; -inf outside its support."""
        threshold = _PROXY_MIN_P * probabilities.amax(dim=-1, keepdim=True)
        proxy = probabilities.masked_fill(probabilities < threshold, 0.0)
        return (proxy.gather(-1, tokens).squeeze(-1) / proxy.sum(dim=-1)).log()

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: "torch.Generator | None"
    ) -> Tensor:
        from trainer.rules.selection import largest

        assert batch.token_statistics is not None
        bad = tokens.bool() & (batch.advantages < 0)
        count = int(self.fraction * sum(gather([int(bad.sum())])))
        return (
            largest(-batch.old_logprobs.double(), bad, count, gather)
            & batch.token_statistics.isfinite()
        )

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        ratio = tokens.log_ratio.exp()
        losses, clipped = surrogate(
            ratio, tokens.advantages, self.clip_ratio_low, self.clip_ratio_high
        )
        proxy_logprobs = tokens.token_statistics
        if tokens.chosen is None or proxy_logprobs is None:
            return TokenLosses(losses, clipped)
        current = tokens.logprobs.detach()
        pulled = tokens.chosen & (current < proxy_logprobs)
        distance = proxy_logprobs.where(pulled, current) - tokens.logprobs
        distance = distance.clamp(max=20.0)  # keeps exp() from overflowing
        penalty = self.coef * (distance.exp() - distance - 1).clamp(max=10.0)
        protected = -tokens.advantages * ratio + penalty
        return TokenLosses(protected.where(pulled, losses), clipped & ~pulled)
