"""Clip-Cov and KL-Cov [arXiv:2505.22617]: restrict the update of a few tokens that would reduce the
policy's entropy.

verl selects these tokens in every microbatch, from the current log-probabilities. At the first
optimizer step, they equal the old log-probabilities, which are used here.

trainer run base algorithm.loss=clip_cov
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
    without_rounding,
)
from trainer.rules.losses.clipped import surrogate
from trainer.types import Tensor

if TYPE_CHECKING:
    import torch

COVARIANCE_RANGE = (1.0, 5.0)  # range of the covariance of Clip-Cov's candidates


class ClipCov(PolicyLoss):
    """Clip-Cov: ``l = max(-A r, -A clip(r, 1 - low, 1 + high))``, and 0 at a random ``fraction`` of
    the tokens, sampled from the tokens with ``1 < (A - mean A) (log pi_old - mean log pi_old) <
    5``. There is no dual clip. Same as verl.
    """

    name: Literal["clip_cov"] = "clip_cov"
    clip_ratio_low: Probability = Field(
        0.2, description="lower clip: the ratio is clipped at 1 - clip_ratio_low"
    )
    clip_ratio_high: NonNegative = Field(
        0.2, description="upper clip: the ratio is clipped at 1 + clip_ratio_high"
    )
    fraction: Probability = Field(2e-4, description="fraction of tokens excluded from the update")

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: "torch.Generator | None"
    ) -> Tensor:
        covariance, count = _covariances(batch, tokens, gather, self.fraction)
        low, high = COVARIANCE_RANGE
        return drawn((covariance > low) & (covariance < high), count, gather, generator)

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        ratio = tokens.log_ratio.exp()
        losses, clipped = surrogate(
            ratio, tokens.advantages, self.clip_ratio_low, self.clip_ratio_high
        )
        if tokens.chosen is None:
            return TokenLosses(losses, clipped)
        return TokenLosses(losses * ~tokens.chosen, clipped | tokens.chosen)


class KlCov(PolicyLoss):
    """KL-Cov: ``l = -A r`` without clip, plus ``coef |log r|`` at the ``fraction`` of the tokens
    with the largest ``(A - mean A) (log pi_old - mean log pi_old)``.

    Same as verl, except that log-ratios within rounding error are set to 0: the gradient of the
    absolute value has full size even for a tiny log-ratio.
    """

    has_regularizer: ClassVar[bool] = True

    name: Literal["kl_cov"] = "kl_cov"
    fraction: Probability = Field(2e-4, description="fraction of tokens with the KL penalty")
    coef: NonNegative = Field(1.0, description="weight of the penalty")

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: "torch.Generator | None"
    ) -> Tensor:
        from trainer.rules.selection import largest

        covariance, count = _covariances(batch, tokens, gather, self.fraction)
        return largest(covariance, tokens.bool(), count, gather) & (covariance != 0)

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        losses = -tokens.advantages * tokens.log_ratio.exp()
        if tokens.chosen is None:
            return TokenLosses(losses)
        distance = without_rounding(tokens.log_ratio).abs()
        return TokenLosses(losses + self.coef * distance * tokens.chosen)


def covariances(advantages: Tensor, logprobs: Tensor, tokens: Tensor, gather: Gather) -> Tensor:
    """Return ``(A - mean A) (logprob - mean logprob)``, [B, T] float64.

    The entropy of the policy changes by minus the mean covariance, so tokens with a large
    covariance reduce entropy. Means are over ``tokens`` [B, T] of all ranks; A is before AR.
    """
    import torch

    values = torch.stack([advantages, logprobs, torch.ones_like(logprobs)]).double() * tokens
    sums = torch.tensor(gather([values.sum(dim=(1, 2)).tolist()]), dtype=torch.float64).sum(dim=0)
    means = (sums / sums[2].clamp(min=1)).to(values.device)
    return (advantages.double() - means[0]) * (logprobs.double() - means[1]) * tokens


def drawn(
    candidates: Tensor, count: int, gather: Gather, generator: "torch.Generator | None"
) -> Tensor:
    """Select ``count`` of the candidates of all ranks at random, and return the mask of this rank's
    selected tokens, [B, T] bool. Without a generator, the first candidates in row order are taken.
    """
    import torch

    from trainer.rules.selection import largest

    lots = torch.arange(candidates.numel(), dtype=torch.float64)
    if generator is not None:
        lots = torch.rand(candidates.numel(), dtype=torch.float64, generator=generator)
    return largest(-lots.view(candidates.shape).to(candidates.device), candidates, count, gather)


def _covariances(
    batch: TrainBatch, tokens: Tensor, gather: Gather, fraction: float
) -> tuple[Tensor, int]:
    """Return the covariance of every token, [B, T], and the number of tokens over all ranks for
    ``fraction``, at least 1.
    """
    covariance = covariances(batch.advantages, batch.old_logprobs, tokens, gather)
    return covariance, max(1, int(fraction * sum(gather([int(tokens.sum())]))))
