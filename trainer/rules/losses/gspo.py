"""GSPO policy loss: sequence-level importance ratio."""

from typing import Literal

from loptune.section import NonNegative, Probability
from trainer.rules.interface import MAX_LOG_RATIO, LossInputs, PolicyLoss, TokenLosses
from trainer.rules.losses.clipped import surrogate


class Gspo(PolicyLoss):
    """GSPO-token [arXiv:2507.18071, equations 13 and 14].

    ``s = exp(mean over the completion of log r)``; ``s_t = sg(s) pi / sg(pi)``;
    ``l = max(-A s_t, -A clip(s_t, 1 - low, 1 + high))``. The mean is over all tokens of the
    completion in every isolation pass. GSPO-token has the same gradient as GSPO if A is constant
    over the completion, and also supports per-token A (AR), which GSPO would average. No dual clip.
    Same as verl and SkyRL. Aggregated by ``seq_mean_token_sum`` it is LUSPO [arXiv:2602.05261].
    """

    aggregations = ("seq_mean_token_mean", "seq_mean_token_sum")
    sequence_level = True

    name: Literal["gspo"] = "gspo"
    clip_ratio_low: Probability = 3e-4
    """lower clip: the ratio of the completion is clipped at 1 - clip_ratio_low"""
    clip_ratio_high: NonNegative = 4e-4
    """upper clip: the ratio of the completion is clipped at 1 + clip_ratio_high"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        mask = tokens.completion_mask
        lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio = ((tokens.logprobs - tokens.old_logprobs) * mask).sum(
            dim=1, keepdim=True
        ) / lengths
        log_ratio = log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = (tokens.logprobs - tokens.logprobs.detach() + log_ratio).exp()
        return TokenLosses(
            *surrogate(ratio, tokens.advantages, self.clip_ratio_low, self.clip_ratio_high)
        )
