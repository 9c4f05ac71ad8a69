"""The loss of an update batch: policy loss, KL penalty and entropy bonus."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.algorithm.rollout_correction import importance_weights, ratio_bounds
from trainer.config.algorithm import AlgorithmConfig, RolloutCorrection
from trainer.rules.interface import (
    Aggregation,
    LossInputs,
    TokenLosses,
    UpdateTotals,
    without_rounding,
)
from trainer.types import LossOutput

_MAX_K3 = 10.0  # upper bound of the k3 estimate [nats], as in verl, OpenRLHF and NeMo-RL


def update_loss(inputs: LossInputs, config: AlgorithmConfig) -> LossOutput:
    """Return the total loss and its metrics.

    The loss is ``sum(w * token_mask * (l * importance_weight + c (log r)^2 + kl_coef * kl))``. Here
    l is the policy loss of a token, w its weight from `token_weights`, and importance_weight its
    weight from `trainer.algorithm.rollout_correction`. The KL term is part of the loss only with
    ``kl_placement: loss``. The squared log-ratio, with ``c = log_ratio_coef``, keeps the policy
    near the old one: prime-rl adds it to DPPO, and with ``l = -A logprob`` it is verl's DRO. With
    ``off_policy_threshold`` the policy loss leaves out tokens with a negative advantage in
    completions that are far from the policy. The entropy bonus subtracts ``entropy_coef`` times the
    entropies, weighted by w.

    Returns:
        The loss, and metrics over the tokens of the pass: the sums ``clipped``, ``dual_clipped``,
        ``approx_kl`` (old_logprob - logprob) and ``tokens``, and the maximum ``ratio_max``.
    """
    weights = (
        token_weights(inputs.completion_mask, config.aggregation, inputs.totals) * inputs.token_mask
    )
    with config.loss.errors_located():
        result = config.loss(inputs)
    losses, clipped, dual_clipped = (
        result if isinstance(result, TokenLosses) else TokenLosses(result)
    )
    if config.rollout_corrections:
        losses = losses * _correction_weights(inputs, config.rollout_corrections)
    if config.off_policy_threshold is not None:
        losses = losses * _near_policy(inputs, config.off_policy_threshold, config.isolates)
    if config.log_ratio_coef > 0:
        losses = losses + config.log_ratio_coef * without_rounding(inputs.log_ratio).square()
    loss = (losses * weights).sum()
    if inputs.ref_logprobs is not None and config.kl_coef > 0 and config.kl_in_loss:
        penalty = kl_penalty(inputs.logprobs, inputs.ref_logprobs, config)
        if config.kl_importance_ratio:
            penalty = penalty * inputs.log_ratio.exp()
        loss = loss + config.kl_coef * (penalty * weights).sum()
    if inputs.entropies is not None and config.entropy_coef > 0:
        loss = loss - config.entropy_coef * (inputs.entropies * weights).sum()
    with torch.no_grad():
        clipped_in_pass = clipped * inputs.token_mask
        metrics = {
            "clipped": clipped_in_pass.sum(),
            "dual_clipped": (dual_clipped * inputs.token_mask).sum(),
            "approx_kl": ((inputs.old_logprobs - inputs.logprobs) * inputs.token_mask).sum(),
            "tokens": inputs.token_mask.sum(),
            "ratio_max": (inputs.log_ratio.exp() * inputs.token_mask).max(),
        }
    return LossOutput(loss, clipped_in_pass, metrics)


def _correction_weights(inputs: LossInputs, corrections: Sequence[RolloutCorrection]) -> Tensor:
    """Return the factors of the token losses, [B, T]."""
    # None: the engine's log-probabilities are used as old ones
    if inputs.rollout_logprobs is None:
        return ratio_bounds(inputs.log_ratio.detach(), corrections)
    return importance_weights(
        inputs.old_logprobs, inputs.rollout_logprobs, inputs.completion_mask, corrections
    ).weights


def _near_policy(inputs: LossInputs, threshold: float, isolates: bool) -> Tensor:
    """Return the off-policy sequence mask [arXiv:2512.02556, section 3.1; TRL], [B, T]: 0 at tokens
    with ``A < 0`` of a completion with ``mean of (log mu - log pi) > threshold``, else 1.

    mu is the sampling policy: its log-probabilities come from the engine, which also provides the
    old ones with ``optim.old_logprobs=rollout``. pi is the current policy. With Lopti, pi is the
    policy before both passes, so that the second pass does not lose completions that the first pass
    moved.
    """
    mask = inputs.completion_mask
    sampled = inputs.old_logprobs if inputs.rollout_logprobs is None else inputs.rollout_logprobs
    current = inputs.old_logprobs if isolates else inputs.logprobs.detach()
    distance = ((sampled - current) * mask).sum(dim=1, keepdim=True)
    distance = distance / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return ((inputs.advantages >= 0) | (distance <= threshold)).to(mask.dtype)


def token_weights(
    completion_mask: Tensor, aggregation: Aggregation, totals: UpdateTotals
) -> Tensor:
    """Return weights w such that the aggregated loss is ``sum(w * token_loss)``, [B, T].

    Args:
        completion_mask: [B, T].
        aggregation: ``token_mean``: 1/tokens (DAPO); ``seq_mean_token_sum``: 1/sequences;
            ``seq_mean_token_mean``: 1/(sequences * tokens of the sequence) (GRPO); ``constant``:
            1/(sequences * max_new_tokens) (Dr. GRPO [arXiv:2503.20783]).
        totals: tokens and sequences of the update batch.
    """
    if aggregation == "token_mean":
        return completion_mask / totals.tokens
    weights = completion_mask / totals.sequences
    if aggregation == "constant":
        return weights / totals.max_tokens
    if aggregation == "seq_mean_token_mean":
        return weights / completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
    return weights


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, config: AlgorithmConfig) -> Tensor:
    """Return the per-token estimate of KL(policy || reference) [joschu.net/blog/kl-approx.html],
    [B, T].

    With ``d = ref_logprob - logprob``: k1 ``-d``; k2 ``d^2 / 2``; k3 ``exp(d) - d - 1``. In k3, d
    is clamped to ±``kl_log_ratio_clamp`` (20 in verl and NeMo-RL, 5 in the published code of
    arXiv:2505.12929) and the value to at most 10. With ``kl_log_ratio_clamp: null`` nothing is
    clamped, as in TRL. In the loss the estimate is differentiated directly, which is the default of
    verl, OpenRLHF and slime. With ``kl_importance_ratio`` `update_loss` multiplies it by ``pi /
    pi_old`` first [arXiv:2512.02556, section 3.1], so that its gradient is the gradient of the KL
    divergence also off policy. In k2 and k3, a difference that rounding explains is set to 0,
    because before the first optimizer step the policy equals the reference.
    """
    difference = ref_logprobs - logprobs
    if config.kl_estimator == "k1":  # its gradient does not depend on the difference
        return -difference
    difference = without_rounding(difference)
    if config.kl_estimator == "k2":
        return 0.5 * difference.square()
    bound = config.kl_log_ratio_clamp
    if bound is None:
        return difference.exp() - difference - 1
    difference = difference.clamp(-bound, bound)
    return (difference.exp() - difference - 1).clamp(max=_MAX_K3)
