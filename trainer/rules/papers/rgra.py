"""RGRA [arXiv:2603.18756]: REINFORCE with group-relative advantages.

trainer run base algorithm.loss=rgra algorithm.kl_coef=0.001
"""

from typing import Literal

from trainer.rules import LossInputs, PolicyLoss, TokenLosses


class Rgra(PolicyLoss):
    """GRPO without importance ratio and clip, ``l = -A logprob``.

    The paper combines it with the advantage ``grpo`` and a KL penalty in the loss. Only the
    gradient is meaningful, not the loss value.
    """

    name: Literal["rgra"] = "rgra"

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        return TokenLosses(-tokens.advantages * tokens.logprobs)
