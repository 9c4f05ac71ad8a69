"""The KL penalty against the reference."""

from torch import Tensor

from trainer.algorithm.loss_inputs import MAX_LOG_RATIO
from trainer.config.algorithm import AlgorithmConfig


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, config: AlgorithmConfig) -> Tensor:
    """Per-token estimate of KL(policy || reference) [joschu.net/blog/kl-approx.html], [B, T].

    With ``d = ref_logprob - logprob``: k1 ``-d``; k2 ``d^2 / 2``; k3 ``exp(d) - d - 1``. In k3, d is clamped to
    ±``kl_log_ratio_clamp`` (20 in verl and NeMo-RL, 5 in the published code of arXiv:2505.12929) and the value to
    at most ``kl_value_clamp``; null clamps nothing, as TRL.
    """
    difference = ref_logprobs - logprobs
    if config.kl_estimator == "k1":
        return -difference
    if config.kl_estimator == "k2":
        return 0.5 * difference.square()
    if config.kl_log_ratio_clamp is not None:
        difference = difference.clamp(-config.kl_log_ratio_clamp, config.kl_log_ratio_clamp)
    penalty = difference.exp() - difference - 1
    return penalty if config.kl_value_clamp is None else penalty.clamp(max=config.kl_value_clamp)


def kl_loss(logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, config: AlgorithmConfig) -> Tensor:
    """The KL term of the loss at every token, before ``kl_coef``, [B, T].

    With ``kl_gradient: unbiased`` it is the penalty times ``pi / pi_old`` [arXiv:2512.02556, section 3.1], whose
    gradient is that of the KL divergence over tokens sampled from ``pi_old``; the plain penalty's is not. As TRL.
    """
    penalty = kl_penalty(logprobs, ref_logprobs, config)
    if config.kl_gradient == "unbiased":
        return penalty * (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return penalty
