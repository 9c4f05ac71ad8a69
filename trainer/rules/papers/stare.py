"""STARE [arXiv:2606.19236]: increase the weight of high-surprisal tokens while the policy's entropy
is low. Same as the authors' code.

trainer run base algorithm.loss=stare algorithm.loss.clip_ratio_high=0.28
"""

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainer.rules import (
    Gather,
    LossInputs,
    NonNegative,
    Positive,
    Probability,
    TokenLosses,
    TrainBatch,
)
from trainer.rules.losses.clipped import Clipped
from trainer.types import Tensor

if TYPE_CHECKING:
    import torch


class Stare(Clipped):
    """``l = w max(-A r, -A clip(r))`` with dual clip, and a weight w for the most surprising
    tokens. If the mean entropy of the tokens is below ``target_entropy``, the ``fraction`` (rounded
    up) of tokens with the largest ``-log pi_old`` gets ``w = amplify`` among tokens with ``A > 0``,
    and ``w = attenuate`` among tokens with ``A < 0``. In all other cases ``w = 1``. ``attenuate:
    1`` is the authors' default variant, O1; 0.9 is their variant C2. Their code selects tokens in
    every microbatch with the current policy, and can move both weights in steps of 0.01, which is
    off by default.
    """

    needs_distributions: ClassVar[bool] = True

    name: Literal["stare"] = "stare"  # type: ignore[assignment]
    fraction: Probability = Field(
        0.1, description="fraction of tokens that are reweighted, for each sign of A"
    )
    amplify: Positive = Field(1.1, description="weight of surprising tokens with A > 0")
    attenuate: NonNegative = Field(
        1.0, description="weight of surprising tokens with A < 0 (C2: 0.9)"
    )
    target_entropy: NonNegative = Field(
        0.3, description="tokens are reweighted only if the mean entropy is below this value [nats]"
    )

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: "torch.Generator | None"
    ) -> Tensor:
        import torch

        from trainer.rules.selection import largest

        assert batch.entropies is not None
        counted = sum(gather([int(tokens.sum())]))
        entropy = sum(gather([float((batch.entropies * tokens).sum())])) / max(1, counted)
        chosen = torch.zeros_like(tokens, dtype=torch.bool)
        for candidates in (batch.advantages > 0, batch.advantages < 0):
            candidates = candidates & tokens.bool()
            count = math.ceil(self.fraction * sum(gather([int(candidates.sum())])))
            chosen |= largest(-batch.old_logprobs.double(), candidates, count, gather)
        return chosen & (entropy < self.target_entropy)

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        result = super().__call__(tokens)
        if tokens.chosen is None:
            return result
        good = tokens.advantages > 0
        weights = (good * self.amplify + ~good * self.attenuate).where(tokens.chosen, 1.0)
        return result._replace(losses=result.losses * weights)
