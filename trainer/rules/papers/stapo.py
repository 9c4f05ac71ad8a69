"""STAPO [arXiv:2602.15620]: low-probability tokens of good completions are masked at positions of
low entropy.

trainer run base algorithm.loss=stapo algorithm.loss.clip_ratio_high=0.28
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainer.rules import Gather, LossInputs, Probability, TokenLosses, TrainBatch
from trainer.rules.losses.clipped import Clipped
from trainer.types import Tensor

if TYPE_CHECKING:
    import torch


class Stapo(Clipped):
    """``l = max(-A r, -A clip(r, 1 - low, 1 + high))`` with dual clip, and 0 at tokens with ``A >
    0``, ``pi_old < probability`` and a low entropy.

    Low is below a quantile of the entropies of the batch's tokens: the 80th percentile in section
    5.1, where section 5.3 of version 1 writes 20% for the fraction above it. The paper chooses in
    every mini-batch by the current policy and divides by the other tokens (0.01% fewer) only.
    """

    needs_distributions: ClassVar[bool] = True

    name: Literal["stapo"] = "stapo"  # type: ignore[assignment]
    probability: Probability = Field(
        0.002, description="probability below which a token has a low probability"
    )
    entropy_quantile: Probability = Field(
        0.8, description="quantile of the entropies below which one is low"
    )

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: "torch.Generator | None"
    ) -> Tensor:
        from trainer.rules.selection import quantile

        assert batch.entropies is not None
        bound = quantile(batch.entropies[tokens.bool()], self.entropy_quantile, gather)
        sure = batch.entropies.double() < bound
        return (
            tokens.bool()
            & sure
            & (batch.advantages > 0)
            & (batch.old_logprobs.exp() < self.probability)
        )

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        result = super().__call__(tokens)
        if tokens.chosen is None:
            return result
        return result._replace(
            losses=result.losses * ~tokens.chosen, clipped=result.clipped | tokens.chosen
        )
