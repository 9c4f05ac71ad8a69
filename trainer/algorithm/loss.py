"""The clipped policy loss, the KL penalty, and how token losses become one number."""

from typing import Literal

import torch
from torch import Tensor

from trainer.config.schema import AlgorithmConfig
from trainer.types import LossOutput

Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"]


def token_weights(
    completion_mask: Tensor, aggregation: Aggregation, total_tokens: float, total_sequences: float
) -> Tensor:
    """Weights w such that the aggregated loss is ``sum(w * token_loss)``, [B, T].

    The totals are those of the whole update batch over all microbatches and ranks, so that neither gradient
    accumulation nor data parallelism changes the loss. They count all completion tokens, also those that an
    isolation pass leaves out.

    Args:
        completion_mask: [B, T].
        aggregation: ``token_mean``: 1/total_tokens; ``seq_mean_token_sum``: 1/total_sequences;
            ``seq_mean_token_mean``: 1/(total_sequences * tokens of the sequence).
        total_tokens: completion tokens of the update batch.
        total_sequences: completions of the update batch.
    """
    if aggregation == "token_mean":
        return completion_mask / total_tokens
    weights = completion_mask / total_sequences
    if aggregation == "seq_mean_token_mean":
        weights = weights / completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
    return weights


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Per-token estimate of KL(policy || reference) [joschu.net/blog/kl-approx.html], [B, T].

    With ``d = ref_logprob - logprob``: k1 ``-d``; k2 ``d^2 / 2``; k3 ``exp(d) - d - 1``. In k3 ``d`` is clamped
    to ±5 and the value to ±10, as in the published implementation.
    """
    difference = ref_logprobs - logprobs
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference.square()
    difference = difference.clamp(-5, 5)
    return (difference.exp() - difference - 1).clamp(-10, 10)


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    token_mask: Tensor,
    clip_ratio_low: float,
    clip_ratio_high: float,
    dual_clip: float,
    importance_weights: Tensor | None = None,
) -> LossOutput:
    """Clipped surrogate [arXiv:1707.06347] with dual clip [arXiv:1912.09729].

    ``ratio = exp(logprob - old_logprob)``; ``l = max(-A * ratio, -A * clip(ratio, 1 - low, 1 + high))``; where
    ``A < 0``, ``l = min(l, -A * dual_clip)``. The loss is ``sum(weights * token_mask * l)``.

    Args:
        logprobs: [B, T], with gradient.
        old_logprobs: [B, T].
        advantages: [B, T].
        weights: [B, T], from `token_weights`.
        token_mask: [B, T], 1 at the tokens of this pass.
        clip_ratio_low: lower clip range.
        clip_ratio_high: upper clip range.
        dual_clip: bound c of the loss of negative advantages, in units of ``-A``.
        importance_weights: [B, T], truncated importance sampling between engine and trainer.

    Returns:
        The loss; metrics are sums over the tokens of the pass: ``clipped``, ``dual_clipped``, ``approx_kl``
        (old_logprob - logprob), ``tokens``, and the maximum ``ratio_max``.
    """
    negative_kl = logprobs - old_logprobs
    ratio = negative_kl.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    surrogate = torch.maximum(unclipped, clipped)
    bounded = torch.minimum(surrogate, -advantages * dual_clip)
    token_loss = torch.where(advantages < 0, bounded, surrogate)
    if importance_weights is not None:
        token_loss = token_loss * importance_weights
    loss = (token_loss * weights * token_mask).sum()
    with torch.no_grad():
        metrics = {
            "clipped": ((clipped > unclipped) * token_mask).sum(),
            "dual_clipped": ((surrogate > -advantages * dual_clip) * (advantages < 0) * token_mask).sum(),
            "approx_kl": (-negative_kl * token_mask).sum(),
            "tokens": token_mask.sum(),
            "ratio_max": (ratio * token_mask).max(),
        }
    return LossOutput(loss, metrics)


def importance_weights(old_logprobs: Tensor, rollout_logprobs: Tensor, config: AlgorithmConfig) -> Tensor | None:
    """Weights that correct for an engine which samples from slightly other probabilities than the trainer's.

    With the token ratio ``r_t = exp(old_logprob_t - rollout_logprob_t)`` and cap C: ``min(r_t, C)`` on token
    level [fengyao.notion.site/off-policy-rl, truncated importance sampling]; on sequence level the ratio of the
    whole completion ``R = prod_t r_t`` where ``R <= C`` and 0 elsewhere [Liu et al. 2025, "When Speed Kills
    Stability", masked importance sampling].

    Args:
        old_logprobs: [B, T], 0 outside the completions.
        rollout_logprobs: [B, T], likewise, over the whole vocabulary.
        config: cap and level.

    Returns:
        [B, T], or None where the correction is off.
    """
    if config.importance_sampling_cap is None:
        return None
    log_ratio = old_logprobs - rollout_logprobs
    if config.importance_sampling_level == "token":
        return log_ratio.exp().clamp(max=config.importance_sampling_cap)
    ratio = log_ratio.sum(dim=1, keepdim=True).exp()
    return ratio.masked_fill(ratio > config.importance_sampling_cap, 0.0).expand_as(log_ratio)


def update_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    token_mask: Tensor,
    config: AlgorithmConfig,
) -> LossOutput:
    """The whole loss of some rows of an update batch: policy loss plus ``kl_coef`` times the KL penalty.

    Shapes as in `policy_loss`. The KL term of tokens outside ``token_mask`` is 0, like their policy loss.
    """
    output = policy_loss(
        logprobs,
        old_logprobs,
        advantages,
        weights,
        token_mask,
        config.clip_ratio_low,
        config.clip_ratio_high,
        config.dual_clip,
        importance_weights(old_logprobs, rollout_logprobs, config),
    )
    if ref_logprobs is None or config.kl_coef == 0 or not config.kl_in_loss:
        return output
    penalty = kl_penalty(logprobs, ref_logprobs, config.kl_estimator)
    return LossOutput(output.loss + config.kl_coef * (penalty * weights * token_mask).sum(), output.metrics)
