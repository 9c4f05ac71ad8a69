"""VESPO policy loss: the weight of each completion is a smooth function of its ratio."""

from typing import Literal

from loptune.section import NonNegative
from trainer.rules.interface import MAX_LOG_RATIO, LossInputs, PolicyLoss, TokenLosses
from trainer.types import Tensor


class Vespo(PolicyLoss):
    """VESPO [arXiv:2602.10693].

    ``w = prod over the completion of r``; ``phi = exp(lambda) w^k exp(-lambda w)``, which is 1 at
    ``w = 1``; ``l = -sg(phi) A logprob``. k and lambda depend on the sign of A. A completion is
    neither clipped nor split, but fades out as its probability moves away from the old one. Only
    the gradient is meaningful, not the loss value. Same as TRL, except that TRL adds the engine's
    log-ratio to log w: use `optim.old_logprobs: rollout` for the same effect.
    """

    sequence_level = True

    name: Literal["vespo"] = "vespo"
    k_positive: NonNegative = 2.0
    """power of the completion's ratio if A is at least 0"""
    lambda_positive: NonNegative = 3.0
    """decay rate in the completion's ratio if A is at least 0"""
    k_negative: NonNegative = 3.0
    """power of the completion's ratio if A is negative"""
    lambda_negative: NonNegative = 2.0
    """decay rate in the completion's ratio if A is negative"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        weight = self.weights(tokens)
        return TokenLosses(-weight * tokens.advantages * tokens.logprobs)

    def weights(self, tokens: LossInputs) -> Tensor:
        """Return phi for every token, [B, T], without gradient."""
        log_ratio = (tokens.logprobs.detach() - tokens.old_logprobs) * tokens.completion_mask
        log_w = log_ratio.sum(dim=1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        good = tokens.advantages >= 0
        power = good * self.k_positive + ~good * self.k_negative
        decay = good * self.lambda_positive + ~good * self.lambda_negative
        return (decay + power * log_w - decay * log_w.exp()).exp()
