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

    An entropy is low if it is below a quantile of the entropies in the batch. Section 5.1 of the
    paper uses the 80th percentile; section 5.3 (version 1) gives 20% as the fraction above it. The
    paper selects tokens in every mini-batch with the current policy, and divides by the number of
    remaining tokens only (0.01% fewer).
    """

    needs_distributions: ClassVar[bool] = True

    name: Literal["stapo"] = "stapo"  # type: ignore[assignment]
    probability: Probability = Field(
        0.002, description="tokens with a lower sampling probability are treated as low-probability"
    )
    entropy_quantile: Probability = Field(
        0.8, description="entropy quantile below which a token is low-entropy"
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
