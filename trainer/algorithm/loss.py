"""The policy losses, the KL penalty, and how token losses become one number."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trainer.config.schema import AlgorithmConfig
from trainer.types import LossOutput, TrainBatch

Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"]


class UpdateTotals(NamedTuple):
    """What an update batch holds over all microbatches and ranks: the denominators of its loss.

    So neither gradient accumulation nor data parallelism changes the loss. They count all completion tokens, also
    those that an isolation pass leaves out.
    """

    tokens: float
    sequences: float


@dataclass(frozen=True)
class LossInputs:
    """Some rows of an update batch in one pass. Fields [B, T] are aligned with the completion tokens."""

    logprobs: Tensor  # [B, T], with gradient
    old_logprobs: Tensor  # [B, T], 0 outside the completions
    ref_logprobs: Tensor | None  # [B, T]
    rollout_logprobs: Tensor  # [B, T], 0 outside the completions
    advantages: Tensor  # [B, T]
    completion_mask: Tensor  # [B, T]
    token_mask: Tensor  # [B, T], 1 at the tokens of the pass
    totals: UpdateTotals

    @classmethod
    def of(cls, rows: TrainBatch, logprobs: Tensor, token_mask: Tensor, totals: UpdateTotals) -> "LossInputs":
        """Those of some rows [B, T] of a scored batch with advantages."""
        return cls(
            logprobs=logprobs,
            old_logprobs=rows.old_logprobs,
            ref_logprobs=rows.ref_logprobs,
            rollout_logprobs=rows.rollout_logprobs,
            advantages=rows.advantages,
            completion_mask=rows.completion_mask,
            token_mask=token_mask,
            totals=totals,
        )


class TokenLosses(NamedTuple):
    """The losses of single tokens, before they are weighted, and where the importance ratio was clipped."""

    losses: Tensor  # [B, T], with gradient
    clipped: Tensor  # [B, T] bool
    dual_clipped: Tensor  # [B, T] bool


def clipped_surrogate(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """Clipped surrogate [arXiv:1707.06347] with dual clip [arXiv:1912.09729].

    ``ratio = exp(logprob - old_logprob)``; ``l = max(-A * ratio, -A * clip(ratio, 1 - low, 1 + high))``; where
    ``A < 0``, ``l = min(l, -A * dual_clip)``.
    """
    advantages = inputs.advantages
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    surrogate = torch.maximum(unclipped, clipped)
    bound = -advantages * config.dual_clip
    losses = torch.where(advantages < 0, torch.minimum(surrogate, bound), surrogate)
    return TokenLosses(losses, clipped > unclipped, (surrogate > bound) & (advantages < 0))


PolicyLoss = Callable[[LossInputs, AlgorithmConfig], TokenLosses]
POLICY_LOSSES: dict[str, PolicyLoss] = {"ppo_clip": clipped_surrogate}


def update_loss(inputs: LossInputs, config: AlgorithmConfig) -> LossOutput:
    """The whole loss: ``sum(w * token_mask * (l * importance_weight + kl_coef * kl))``.

    With the policy loss l of every token, w of `token_weights`, and the KL term where it is placed in the loss.

    Returns:
        The loss; metrics are sums over the tokens of the pass: ``clipped``, ``dual_clipped``, ``approx_kl``
        (old_logprob - logprob), ``tokens``, and the maximum ``ratio_max``.
    """
    weights = token_weights(inputs.completion_mask, config.loss_aggregation, inputs.totals)
    losses, clipped, dual_clipped = POLICY_LOSSES[config.policy_loss](inputs, config)
    importance = importance_weights(inputs.old_logprobs, inputs.rollout_logprobs, config)
    if importance is not None:
        losses = losses * importance
    loss = (losses * weights * inputs.token_mask).sum()
    if inputs.ref_logprobs is not None and config.kl_coef > 0 and config.kl_in_loss:
        penalty = kl_penalty(inputs.logprobs, inputs.ref_logprobs, config.kl_estimator)
        loss = loss + config.kl_coef * (penalty * weights * inputs.token_mask).sum()
    with torch.no_grad():
        log_ratio = inputs.logprobs - inputs.old_logprobs
        clipped_in_pass = clipped * inputs.token_mask
        metrics = {
            "clipped": clipped_in_pass.sum(),
            "dual_clipped": (dual_clipped * inputs.token_mask).sum(),
            "approx_kl": (-log_ratio * inputs.token_mask).sum(),
            "tokens": inputs.token_mask.sum(),
            "ratio_max": (log_ratio.exp() * inputs.token_mask).max(),
        }
    return LossOutput(loss, clipped_in_pass, metrics)


def token_weights(completion_mask: Tensor, aggregation: Aggregation, totals: UpdateTotals) -> Tensor:
    """Weights w such that the aggregated loss is ``sum(w * token_loss)``, [B, T].

    Args:
        completion_mask: [B, T].
        aggregation: ``token_mean``: 1/tokens; ``seq_mean_token_sum``: 1/sequences; ``seq_mean_token_mean``:
            1/(sequences * tokens of the sequence).
        totals: tokens and sequences of the update batch.
    """
    if aggregation == "token_mean":
        return completion_mask / totals.tokens
    weights = completion_mask / totals.sequences
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
