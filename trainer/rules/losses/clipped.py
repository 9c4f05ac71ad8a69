"""PPO's clipped surrogate."""

from typing import Annotated, Literal

from pydantic import Field

from loptune.section import NonNegative, Probability
from trainer.rules.interface import LossInputs, PolicyLoss, TokenLosses
from trainer.types import Tensor


class Clipped(PolicyLoss):
    """PPO's clipped surrogate [arXiv:1707.06347, equation 7] with dual clip [arXiv:1912.09729,
    equation 5].

    ``l = max(-A r, -A clip(r, 1 - low, 1 + high))``; where ``A < 0``, ``l = min(l, -A c)``. GRPO's
    loss [arXiv:2402.03300, equation 3]; with ``high > low`` DAPO's [arXiv:2503.14476, equation 8].
    Same as verl and TRL. The default clip range is from arXiv:2505.12929.
    """

    name: Literal["clipped"] = "clipped"
    clip_ratio_low: Probability = 0.2
    """lower clip: the ratio is clipped at 1 - clip_ratio_low"""
    clip_ratio_high: NonNegative = 0.24
    """upper clip: the ratio is clipped at 1 + clip_ratio_high (DAPO 0.28)"""
    dual_clip: Annotated[float, Field(gt=1)] = 10.0
    """dual clip c, for negative advantages"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        ratio = tokens.log_ratio.exp()
        losses, clipped = surrogate(
            ratio, tokens.advantages, self.clip_ratio_low, self.clip_ratio_high
        )
        bound = -tokens.advantages * self.dual_clip
        negative = tokens.advantages < 0
        return TokenLosses(
            losses.minimum(bound).where(negative, losses), clipped, (losses > bound) & negative
        )


def surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return ``max(-A r, -A clip(r, 1 - low, 1 + high))`` and the mask of clipped tokens, [B, T]
    each.
    """
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    return unclipped.maximum(clipped), clipped > unclipped
