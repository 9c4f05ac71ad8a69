"""Clip-Cov and KL-Cov [arXiv:2505.22617]: a few tokens, whose updates would narrow the policy, are held back.

verl chooses them anew in every microbatch, from the current log-probabilities: the same ones at the first
optimizer step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainer.rules.inputs import Gather, LossInputs, TokenLosses
from trainer.rules.losses.clipped import surrogate
from trainer.rules.policy_loss import PolicyLoss
from trainer.section import Fraction, NonNegative, Probability
from trainer.types import TrainBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

COVARIANCE_RANGE = (1.0, 5.0)  # of Clip-Cov's candidates
_ROUNDING = 1e-5  # of a log-ratio in float32


class ClipCov(PolicyLoss):
    """Clip-Cov: the clipped surrogate, and 0 at a random few of the tokens with a covariance of 1 to 5.

    Without dual clip. As verl.
    """

    name: Literal["clip_cov"] = "clip_cov"
    clip_ratio_low: Probability = Field(0.2, description="lower clip of the ratio: 1 - this")
    clip_ratio_high: NonNegative = Field(0.2, description="upper clip of the ratio: 1 + this")
    share: Fraction = Field(2e-4, description="fraction of the tokens that is held still")

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: torch.Generator | None
    ) -> Tensor | None:
        from trainer.rules.selection import drawn

        covariance, count = _covariances(batch, tokens, gather, self.share)
        low, high = COVARIANCE_RANGE
        return drawn((covariance > low) & (covariance < high), count, gather, generator)

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        ratio = tokens.log_ratio.exp()
        losses, clipped = surrogate(ratio, tokens.advantages, self.clip_ratio_low, self.clip_ratio_high)
        if tokens.chosen is None:
            return TokenLosses(losses, clipped)
        return TokenLosses(losses * ~tokens.chosen, clipped | tokens.chosen)


class KlCov(PolicyLoss):
    """KL-Cov: ``-A r`` without clip, plus ``coef |log r|`` at the tokens with the largest covariance.

    As verl, but that a log-ratio that rounding alone can make counts as 0: the gradient of its size is its sign,
    at full strength however small it is.
    """

    has_penalty: ClassVar[bool] = True

    name: Literal["kl_cov"] = "kl_cov"
    share: Fraction = Field(2e-4, description="fraction of the tokens that is pulled back")
    coef: NonNegative = Field(1.0, description="weight of the penalty")

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: torch.Generator | None
    ) -> Tensor | None:
        from trainer.rules.selection import largest

        covariance, count = _covariances(batch, tokens, gather, self.share)
        return largest(covariance, tokens.bool(), count, gather) & (covariance != 0)

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        losses = -tokens.advantages * tokens.log_ratio.exp()
        if tokens.chosen is None:
            return TokenLosses(losses)
        distance = tokens.log_ratio.abs()
        return TokenLosses(losses + self.coef * distance * (tokens.chosen & (distance > _ROUNDING)))


def _covariances(batch: TrainBatch, tokens: Tensor, gather: Gather, share: float) -> tuple[Tensor, int]:
    """Return the covariance of every token, [B, T], and how many tokens of all ranks the share is, at least 1."""
    from trainer.rules.selection import count_tokens, covariances

    covariance = covariances(batch.advantages, batch.old_logprobs, tokens, gather)
    return covariance, max(1, int(share * count_tokens(tokens, gather)))
