"""Weights for an engine that samples from slightly other probabilities than the trainer's."""

import torch
from torch import Tensor

from trainer.algorithm.loss_inputs import MAX_LOG_RATIO
from trainer.config.algorithm import AlgorithmConfig


def importance_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, completion_mask: Tensor, config: AlgorithmConfig
) -> Tensor | None:
    """Factors of the tokens' policy losses, [B, T]; None where the correction is off.

    With the token ratio ``w_t = pi_old / pi_engine``, cap C and floor F, by level and rule:

    - token, truncate: ``min(w_t, C)`` [fengyao.notion.site/off-policy-rl, truncated importance sampling];
    - token, mask: ``w_t`` where ``F <= w_t <= C``, else 0 (IcePop [ringtech.notion.site/icepop]);
    - sequence, with ``W = prod_t w_t``: truncate ``min(W, C)``, mask ``W`` where ``F <= W <= C``, else 0
      [Liu et al. 2025, "When Speed Kills Stability"];
    - geometric_mean, with ``G`` the geometric mean of w over the completion: truncate ``min(G, C)``; mask ``w_t``
      where ``F <= G <= C``, else 0, as in OpenRLHF and NeMo-RL: a bound that does not tighten with the length.

    The rule reject gives 1 or 0: it drops what was sampled too differently and weighs nothing.
    See `kept_by_rejection`. Log-probabilities [B, T] are 0 outside the completions, and of the whole vocabulary.
    """
    cap, floor = config.importance_sampling_cap, config.importance_sampling_floor
    if cap is None:
        return None
    log_ratio = old_logprobs - rollout_logprobs
    if config.importance_rule == "reject":
        return kept_by_rejection(log_ratio, completion_mask, config).to(log_ratio.dtype)
    tokens = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if config.importance_sampling_level == "token":
        ratio = tokens
    else:
        total = log_ratio.sum(dim=1, keepdim=True)
        if config.importance_sampling_level == "geometric_mean":
            total = total / completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
        ratio = total.exp().expand_as(log_ratio)
    if config.importance_rule == "truncate":
        return ratio.clamp(max=cap)
    weights = tokens if config.importance_sampling_level == "geometric_mean" else ratio
    return weights.masked_fill((ratio > cap) | (ratio < floor), 0.0)


def kept_by_rejection(log_ratio: Tensor, completion_mask: Tensor, config: AlgorithmConfig) -> Tensor:
    """Whether ``F <= D <= C`` for the divergence D of a token or its completion, [B, T] bool.

    With ``w = pi_old / pi_engine`` D is w, ``k2 = (log w)^2 / 2`` or ``k3 = w - 1 - log w``. Over a completion
    sequence multiplies w and adds k2, k3; geometric_mean takes their mean per token; any_token drops a completion
    with any token outside. As verl (its k1 is ``-log w``) and, at any_token, SkyRL. ``log_ratio`` is log w,
    [B, T], 0 outside the completions.
    """
    assert config.importance_sampling_cap is not None
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    divergence, level = config.importance_sampling_divergence, config.importance_sampling_level
    values = {
        "ratio": lambda: log_ratio,
        "k2": lambda: log_ratio.square() / 2,
        "k3": lambda: log_ratio.exp() - 1 - log_ratio,
    }[divergence]()
    if level in ("sequence", "geometric_mean"):
        total = (values * completion_mask).sum(dim=1, keepdim=True)
        tokens = completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
        values = (total if level == "sequence" else total / tokens).expand_as(values)
    if divergence == "ratio":
        values = values.exp()
    kept = (values >= config.importance_sampling_floor) & (values <= config.importance_sampling_cap)
    if level == "any_token":
        return (kept | (completion_mask == 0)).all(dim=1, keepdim=True).expand_as(kept)
    return kept


def ratio_bounds(log_ratio: Tensor, config: AlgorithmConfig) -> Tensor | None:
    """Factors like `importance_weights` where the engine's log-probabilities are the old ones, [B, T], or None.

    The loss's own ratio ``r = pi / pi_engine`` of a token is then the whole importance weight. With cap C and
    floor F the factor is: truncate ``min(1, C / r)``, mask and reject 1 where ``F <= r <= C`` (or the
    divergence), else 0. ``log_ratio`` is log r, [B, T], without gradient.
    """
    cap, floor = config.importance_sampling_cap, config.importance_sampling_floor
    if cap is None:
        return None
    if config.importance_rule == "reject":
        return kept_by_rejection(log_ratio, torch.ones_like(log_ratio), config).to(log_ratio.dtype)
    ratio = log_ratio.exp()
    if config.importance_rule == "truncate":
        return (cap / ratio).clamp(max=1.0)
    return ((ratio >= floor) & (ratio <= cap)).to(ratio.dtype)
