"""Importance weights that correct the mismatch between engine and trainer probabilities."""

from torch import Tensor

from trainer.config.algorithm import EngineCorrection
from trainer.rules.interface import MAX_LOG_RATIO


def importance_weights(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    completion_mask: Tensor,
    config: EngineCorrection,
) -> Tensor:
    """Return the importance weight of each token's policy loss, [B, T].

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
    tokens = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    ratio = tokens
    if config.level != "token":
        total = log_ratio.sum(dim=1, keepdim=True)
        if config.level == "geometric_mean":
            total = total / completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
        ratio = total.exp().expand_as(log_ratio)
    if config.rule == "truncate":
        return ratio.clamp(max=config.cap)
    weights = tokens if config.level == "geometric_mean" else ratio
    return weights.masked_fill((ratio > config.cap) | (ratio < config.floor), 0.0)


def ratio_bounds(log_ratio: Tensor, config: EngineCorrection) -> Tensor:
    """Return the factors that bound the ratio when the engine's log-probabilities are used as old
    ones, [B, T].

    The ratio ``r = pi / pi_engine`` in the loss is then already the full importance weight. The
    factor is ``min(1, C / r)`` for truncate, and 1 where ``F <= r <= C``, else 0, for mask.
    ``log_ratio`` is log r, [B, T], without gradient.
    """
    ratio = log_ratio.exp()
    if config.rule == "truncate":
        return (config.cap / ratio).clamp(max=1.0)
    return ((ratio >= config.floor) & (ratio <= config.cap)).to(ratio.dtype)
