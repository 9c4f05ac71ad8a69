"""CE-GPPO [arXiv:2509.20712]: clipped tokens keep a bounded gradient, as in the authors' code.

trainer run base algorithm.loss=ce_gppo:CeGppo algorithm.loss.beta_low=0.5
"""

from pydantic import Field

from trainer.rules import LossInputs, NonNegative, TokenLosses
from trainer.rules.losses.clipped import Clipped


class CeGppo(Clipped):
    """``-A r`` within the clip range, like `Clipped`. Beyond it, where A moves r further out,
    ``-beta A bound r / sg(r)``: the gradient of a token at the bound, times beta.
    """

    dual_clip: float = Field(3.0, gt=1, description="dual clip c, for negative advantages")
    beta_low: NonNegative = Field(0.75, description="weight of tokens with A < 0 below the range")
    beta_high: NonNegative = Field(1.0, description="weight of tokens with A > 0 above the range")

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        ratio = tokens.log_ratio.exp()
        low, high = 1 - self.clip_ratio_low, 1 + self.clip_ratio_high
        below = (ratio < low) & (tokens.advantages < 0)
        above = (ratio > high) & (tokens.advantages > 0)
        factor = below * self.beta_low * low + above * self.beta_high * high
        kept = factor * (tokens.logprobs - tokens.logprobs.detach()).exp()
        losses = -tokens.advantages * kept.where(below | above, ratio)
        bound = -tokens.advantages * self.dual_clip
        losses = losses.minimum(bound).where(tokens.advantages < 0, losses)
        return TokenLosses(losses, below | above)
