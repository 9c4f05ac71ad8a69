"""DPPO policy loss: masks tokens whose probability changed too much."""

from typing import Literal

from loptune.section import Positive
from trainer.rules.interface import LossInputs, PolicyLoss, TokenLosses
from trainer.types import Tensor

RATIO_CAP = 20.0  # cap of the ratio used as weight, as in verl


class DppoTv(PolicyLoss):
    """DPPO with total variation [arXiv:2602.04879].

    ``l = -sg(min(r, 20)) A logprob``, and 0 if the token's probability has already moved in the
    direction of A and ``|pi - pi_old| > threshold``. Unlike ratio clipping, this does not stop
    low-probability tokens early, whose ratio can be large although the policy hardly changed. Same
    as verl. If the engine's log-probabilities are used as old ones, r is only bounded by the engine
    correction, as in prime-rl.
    """

    name: Literal["dppo_tv"] = "dppo_tv"
    threshold: Positive = 0.2
    """maximum change of a token's probability"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        change = (tokens.logprobs.detach().exp() - tokens.old_logprobs.exp()).abs()
        return within_divergence(tokens, change, self.threshold)


def within_divergence(tokens: LossInputs, divergence: Tensor, threshold: float) -> TokenLosses:
    """Return ``-sg(min(r, 20)) A logprob``, and 0 for tokens that moved in the direction of A by
    more than the threshold. If the engine's log-probabilities are the old ones, r is not capped.
    """
    moves_with_advantage = (tokens.logprobs.detach() - tokens.old_logprobs) * tokens.advantages > 0
    masked = moves_with_advantage & (divergence > threshold)
    ratio = tokens.log_ratio.detach().exp()
    if tokens.rollout_logprobs is not None:
        ratio = ratio.clamp(max=RATIO_CAP)
    return TokenLosses(-ratio * tokens.advantages * tokens.logprobs * ~masked, masked)
