"""SAPO policy loss: a soft gate instead of clipping."""

from typing import Literal

from loptune.section import Positive
from trainer.rules.interface import LossInputs, PolicyLoss, TokenLosses


class Sapo(PolicyLoss):
    """SAPO [arXiv:2511.20347].

    ``l = -(4 / tau) sigmoid(tau (r - 1)) A`` with ``tau = tau_positive`` where ``A > 0``, else
    ``tau_negative``: the gradient equals the gradient of ``-A r`` at ``r = 1`` and decays on both
    sides. Same as TRL and verl.
    """

    aggregations = ("seq_mean_token_mean", "token_mean", "seq_mean_token_sum", "constant")

    name: Literal["sapo"] = "sapo"
    tau_positive: Positive = 1.0
    """sharpness of the gate for positive advantages"""
    tau_negative: Positive = 1.05
    """sharpness of the gate for non-positive advantages"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        ratio = tokens.log_ratio.exp()
        good = tokens.advantages > 0
        tau = good * self.tau_positive + ~good * self.tau_negative
        return TokenLosses(-4 / tau * (tau * (ratio - 1)).sigmoid() * tokens.advantages)
