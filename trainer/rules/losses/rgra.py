"""RGRA: REINFORCE with group-relative advantages."""

from typing import Literal

from trainer.rules.inputs import LossInputs, TokenLosses
from trainer.rules.policy_loss import PolicyLoss


class Rgra(PolicyLoss):
    """RGRA [arXiv:2603.18756]: GRPO without importance ratio and clip, ``l = -A logprob``.

    With the advantage ``grpo`` and a KL penalty in the loss it is the paper's rule. The value of the loss means
    nothing; its gradient does.
    """

    name: Literal["rgra"] = "rgra"

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        return TokenLosses(-tokens.advantages * tokens.logprobs)
