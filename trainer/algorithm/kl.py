"""KL penalty against the reference policy."""

from torch import Tensor

from trainer.config.algorithm import AlgorithmConfig

_LARGEST_K3 = 10.0  # as in verl, OpenRLHF and NeMo-RL [nats]


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, config: AlgorithmConfig) -> Tensor:
    """Return the per-token estimate of KL(policy || reference) [joschu.net/blog/kl-approx.html],
    [B, T].

    With ``d = ref_logprob - logprob``: k1 ``-d``; k2 ``d^2 / 2``; k3 ``exp(d) - d - 1``. In k3, d
    is clamped to ±``kl_log_ratio_clamp`` (20 in verl and NeMo-RL, 5 in the published code of
    arXiv:2505.12929) and the value to at most 10. With null nothing is clamped, as in TRL. In the
    loss the estimate is differentiated directly, which is the default of verl, OpenRLHF and slime.
    It is not multiplied by ``pi / pi_old`` [arXiv:2512.02556, section 3.1].
    """
    difference = ref_logprobs - logprobs
    if config.kl_estimator == "k1":
        return -difference
    if config.kl_estimator == "k2":
        return 0.5 * difference.square()
    bound = config.kl_log_ratio_clamp
    if bound is None:
        return difference.exp() - difference - 1
    difference = difference.clamp(-bound, bound)
    return (difference.exp() - difference - 1).clamp(max=_LARGEST_K3)
