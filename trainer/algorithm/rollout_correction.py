"""Importance weights that correct the mismatch between engine and trainer probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config.algorithm import RolloutCorrection
from trainer.rules.interface import MAX_LOG_RATIO


@dataclass(frozen=True)
class ImportanceWeights:
    """The weight of each token's policy loss, and the tokens whose weight a correction changed."""

    weights: Tensor  # [B, T]
    is_cut: Tensor  # [B, T] bool: reduced to the cap, or set to 0


def importance_weights(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    completion_mask: Tensor,
    corrections: Sequence[RolloutCorrection],
) -> ImportanceWeights:
    """Return the importance weight of each token's policy loss, and which weights were cut.

    If there are several corrections, the masks drop tokens and the first ``truncate`` gives the
    weights. Without a ``truncate`` the first mask gives them. With ``[{level: geometric_mean, rule:
    mask}, {level: token, rule: truncate}]`` completions are dropped by their geometric mean, and
    the tokens of the remaining completions are weighted by ``min(w_t, C)``, as in NeMo-RL, OpenRLHF
    and verl.

    The token ratio is ``w_t = pi_old / pi_engine``, the cap C and the floor F. For each level and
    rule:

    - token, truncate: ``min(w_t, C)`` [fengyao.notion.site/off-policy-rl, truncated importance
      sampling];
    - token, mask: ``w_t`` where ``F <= w_t <= C``, else 0 (IcePop [ringtech.notion.site/icepop]);
    - sequence, with ``W = prod_t w_t``: truncate ``min(W, C)``, mask ``W`` where ``F <= W <= C``,
      else 0 [Liu et al. 2025, "When Speed Kills Stability"];
    - geometric_mean, with ``G`` the geometric mean of w over the completion: truncate ``min(G,
      C)``; mask ``w_t`` where ``F <= G <= C``, else 0, as in OpenRLHF and NeMo-RL. This bound does
      not depend on the length.

    Log-probabilities [B, T] are over the full vocabulary, and 0 outside the completions.
    """
    log_ratio = old_logprobs - rollout_logprobs
    of_weights = next((one for one in corrections if one.rule == "truncate"), corrections[0])
    weights = _uncut_weights(log_ratio, completion_mask, of_weights)
    is_cut = torch.zeros_like(weights, dtype=torch.bool)
    for correction in corrections:
        ratio = _ratios(log_ratio, completion_mask, correction)
        if correction.rule == "truncate":
            is_cut |= ratio > correction.cap
            weights = weights.clamp(max=correction.cap)
        else:
            is_kept = (ratio >= correction.floor) & (ratio <= correction.cap)
            is_cut |= ~is_kept
            weights = weights.where(is_kept, 0.0)
    return ImportanceWeights(weights, is_cut)


def _uncut_weights(log_ratio: Tensor, completion_mask: Tensor, config: RolloutCorrection) -> Tensor:
    """Return the weights of one correction before its cap or mask, [B, T]."""
    if config.level == "geometric_mean" and config.rule == "mask":
        return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return _ratios(log_ratio, completion_mask, config)


def _ratios(log_ratio: Tensor, completion_mask: Tensor, config: RolloutCorrection) -> Tensor:
    """Return the ratio of each token at the correction's level, [B, T]."""
    if config.level == "token":
        return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    total = log_ratio.sum(dim=1, keepdim=True)
    if config.level == "geometric_mean":
        total = total / completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
    return total.exp().expand_as(log_ratio)


def ratio_bounds(log_ratio: Tensor, corrections: Sequence[RolloutCorrection]) -> Tensor:
    """Return the factors that bound the ratio when the engine's log-probabilities are used as old
    ones, [B, T].

    The ratio ``r = pi / pi_engine`` in the loss is then already the full importance weight. The
    factor is ``min(1, C / r)`` for truncate, and 1 where ``F <= r <= C``, else 0, for mask. The
    factors of several corrections are multiplied. ``log_ratio`` is log r, [B, T], without gradient.
    """
    ratio = log_ratio.exp()
    factors = torch.ones_like(ratio)
    for config in corrections:
        if config.rule == "truncate":
            factors = factors * (config.cap / ratio).clamp(max=1.0)
        else:
            factors = factors * ((ratio >= config.floor) & (ratio <= config.cap))
    return factors
