"""DPPO: a token is held back by how far its probability moved."""

from typing import Literal

from trainer.rules.inputs import LossInputs, TokenLosses
from trainer.rules.policy_loss import PolicyLoss
from trainer.section import Positive
from trainer.types import Tensor

RATIO_CAP = 20.0  # of the weight, as in verl


class DppoTv(PolicyLoss):
    """DPPO with total variation [arXiv:2602.04879].

    ``l = -sg(min(r, 20)) A logprob``, and 0 where the token has moved with the sign of A and
    ``|pi - pi_old| > threshold``. Ratio clipping stops low-probability tokens first, at the same
    ratio but a far smaller change of the policy; this does not. As verl. Where the engine's
    log-probabilities are the old ones r has no bound but the engine correction's, as in prime-rl.
    """

    name: Literal["dppo_tv"] = "dppo_tv"
    threshold: Positive = 0.2
    """change of a token's probability that holds it back"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        change = (tokens.logprobs.detach().exp() - tokens.old_logprobs.exp()).abs()
        return within_divergence(tokens, change, self.threshold)


def within_divergence(tokens: LossInputs, divergence: Tensor, threshold: float) -> TokenLosses:
    """Return ``-sg(r) A logprob``, 0 at tokens that moved with A by a divergence above the
    threshold.
    """
    moved_with_advantage = (tokens.logprobs.detach() - tokens.old_logprobs) * tokens.advantages > 0
    held_back = moved_with_advantage & (divergence > threshold)
    ratio = tokens.log_ratio.detach().exp()
    if tokens.rollout_logprobs is not None:
        ratio = ratio.clamp(max=RATIO_CAP)
    return TokenLosses(-ratio * tokens.advantages * tokens.logprobs * ~held_back, held_back)
