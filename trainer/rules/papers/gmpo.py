"""GMPO [arXiv:2507.20673]: replace GRPO's arithmetic mean of ratios with the geometric mean. Same
as TRL and verl.

trainer run base algorithm.loss=gmpo
"""

from typing import ClassVar, Literal

from pydantic import Field

from trainer.rules import Aggregation, LossInputs, NonNegative, PolicyLoss, TokenLosses


class Gmpo(PolicyLoss):
    """The geometric mean of ratios that are clipped per token.

    ``c_t = min(log r, high)`` where ``A > 0``, ``max(log r, -low)`` where ``A < 0``; ``s`` is exp
    of the mean of c over the completion; ``l_t = -A s exp(c_t - sg(c_t))``, whose mean over the
    completion is ``-A s``. As for GSPO, this is a per-token form: for a constant A it has the same
    gradient as TRL and verl, and it supports per-token A (AR).
    """

    aggregations: ClassVar[tuple[Aggregation, ...]] = ("seq_mean_token_mean",)
    sequence_level: ClassVar[bool] = True

    name: Literal["gmpo"] = "gmpo"
    clip_low: NonNegative = Field(
        0.4, description="lower clip: the log-ratio is clipped at -clip_low"
    )
    clip_high: NonNegative = Field(
        0.4, description="upper clip: the log-ratio is clipped at clip_high"
    )

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        log_ratio = tokens.log_ratio
        good = tokens.advantages > 0
        bounded = log_ratio.clamp(max=self.clip_high).where(
            good, log_ratio.clamp(min=-self.clip_low)
        )
        bounded = bounded.where(tokens.advantages != 0, 0.0)
        mask = tokens.completion_mask
        mean = (bounded.detach() * mask).sum(dim=1, keepdim=True) / mask.sum(
            dim=1, keepdim=True
        ).clamp(min=1)
        losses = -tokens.advantages * (mean + bounded - bounded.detach()).exp()
        return TokenLosses(losses, bounded != log_ratio)
