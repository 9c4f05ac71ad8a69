"""DPPO with the KL divergence between binary distributions (this token, or any other token)
[arXiv:2602.04879]. Same as verl.

trainer run base algorithm.loss=dppo_kl
"""

from typing import Literal

from pydantic import Field

from trainer.rules import LossInputs, PolicyLoss, Positive, TokenLosses
from trainer.rules.losses.dppo import within_divergence

# upper limit for probabilities, because the KL divergence takes the logarithm of 1 - p
_BELOW_1 = 1 - 1e-7


class DppoKl(PolicyLoss):
    """The loss of ``dppo_tv``, with a KL divergence as the threshold criterion.

    ``KL = p log(p / q) + (1 - p) log((1 - p) / (1 - q))`` with ``p = pi_old`` and ``q = pi``.
    """

    name: Literal["dppo_kl"] = "dppo_kl"
    threshold: Positive = Field(
        0.05, description="KL divergence above which a token is masked [nats]"
    )

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        old = tokens.old_logprobs
        new = tokens.logprobs.detach()
        p = old.exp()
        others = (-p.clamp(max=_BELOW_1)).log1p() - (-new.exp().clamp(max=_BELOW_1)).log1p()
        return within_divergence(tokens, p * (old - new) + (1 - p) * others, self.threshold)
