"""Weights for an engine that samples from slightly other probabilities than the trainer's."""

from torch import Tensor

from trainer.algorithm.loss_inputs import MAX_LOG_RATIO
from trainer.config.algorithm import AlgorithmConfig


def importance_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, completion_mask: Tensor, config: AlgorithmConfig
) -> Tensor | None:
    """What every token's policy loss is multiplied by, [B, T]; None where the correction is off.

    With the token ratio ``w_t = pi_old / pi_engine``, cap C and floor F, by level and rule:

    - token, truncate: ``min(w_t, C)`` [fengyao.notion.site/off-policy-rl, truncated importance sampling];
    - token, mask: ``w_t`` where ``F <= w_t <= C``, else 0 (IcePop [ringtech.notion.site/icepop]);
    - sequence, with ``W = prod_t w_t``: truncate ``min(W, C)``, mask ``W`` where ``F <= W <= C``, else 0
      [Liu et al. 2025, "When Speed Kills Stability"];
    - geometric_mean, with ``G`` the geometric mean of w over the completion: truncate ``min(G, C)``; mask ``w_t``
      where ``F <= G <= C``, else 0, as in OpenRLHF and NeMo-RL: a bound that does not tighten with the length.

    Args:
        old_logprobs: [B, T], 0 outside the completions.
        rollout_logprobs: [B, T], likewise, over the whole vocabulary.
        completion_mask: [B, T].
        config: level, rule, cap and floor.
    """
    cap, floor = config.importance_sampling_cap, config.importance_sampling_floor
    if cap is None:
        return None
    log_ratio = old_logprobs - rollout_logprobs
    tokens = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if config.importance_sampling_level == "token":
        ratio = tokens
    else:
        total = log_ratio.sum(dim=1, keepdim=True)
        if config.importance_sampling_level == "geometric_mean":
            total = total / completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
        ratio = total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand_as(log_ratio)
    if config.importance_rule == "truncate":
        return ratio.clamp(max=cap)
    weights = tokens if config.importance_sampling_level == "geometric_mean" else ratio
    return weights.masked_fill((ratio > cap) | (ratio < floor), 0.0)


def ratio_bounds(log_ratio: Tensor, config: AlgorithmConfig) -> Tensor | None:
    """The same where the engine's log-probabilities are the old ones, [B, T]; None where the correction is off.

    The loss's own ratio ``r = pi / pi_engine`` is then the whole importance weight. With cap C and floor F, what
    it is multiplied by to be bounded: truncate ``min(1, C / r)``, mask 1 where ``F <= r <= C``, else 0.

    Args:
        log_ratio: ``log r``, [B, T], without gradient.
        config: rule, cap and floor, at the level of tokens.
    """
    cap, floor = config.importance_sampling_cap, config.importance_sampling_floor
    if cap is None:
        return None
    ratio = log_ratio.exp()
    if config.importance_rule == "truncate":
        return (cap / ratio).clamp(max=1.0)
    return ((ratio >= floor) & (ratio <= cap)).to(ratio.dtype)
