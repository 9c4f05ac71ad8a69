"""IPO policy loss: a trust region in probabilities, in both directions."""

from typing import Literal

from loptune.section import Positive
from trainer.rules.interface import LossInputs, PolicyLoss, TokenLosses


class Ipo(PolicyLoss):
    """IPO of prime-rl: ``l = -A r``, and 0 if ``|pi - pi_old| > threshold``.

    Unlike `dppo_tv`, a token is also dropped if its probability moved against A, where an update
    would bring it back. With ``algorithm.log_ratio_coef: 0.001``, which adds ``0.001 (log r)^2``,
    and ``optim.old_logprobs: rollout`` it is prime-rl's ``ipo``.
    """

    name: Literal["ipo"] = "ipo"
    threshold: Positive = 0.1
    """maximum change of a token's probability, in both directions"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        change = (tokens.logprobs.detach().exp() - tokens.old_logprobs.exp()).abs()
        dropped = change > self.threshold
        losses = -tokens.advantages * tokens.log_ratio.exp()
        return TokenLosses(losses.masked_fill(dropped, 0.0), dropped)
