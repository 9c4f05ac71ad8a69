"""Policy losses: what a token's importance ratio and advantage cost.

Throughout, ``r = pi / pi_old = exp(logprob - old_logprob)``, A is the advantage (after AR), ``sg`` stops the
gradient, and a loss is minimised. The numbers of each are those of the peers named with it (tests/data).
"""

import torch
from torch import Tensor

from trainer.algorithm.loss_inputs import MAX_LOG_RATIO, LossInputs, PolicyLoss, TokenLosses
from trainer.config.algorithm import AlgorithmConfig


def clipped_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """PPO's clipped surrogate [arXiv:1707.06347, equation 7] with dual clip [arXiv:1912.09729, equation 5].

    ``l = max(-A r, -A clip(r, 1 - low, 1 + high))``; where ``A < 0``, ``l = min(l, -A c)``. GRPO's loss
    [arXiv:2402.03300, equation 3]; with ``high > low`` DAPO's [arXiv:2503.14476, equation 8]. As verl, TRL.
    """
    surrogate, clipped = _surrogate(inputs.log_ratio.exp(), inputs.advantages, config)
    bound, bad = -inputs.advantages * config.dual_clip, inputs.advantages < 0
    losses = torch.where(bad, torch.minimum(surrogate, bound), surrogate)
    return TokenLosses(losses, clipped, (surrogate > bound) & bad)


def gspo_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """GSPO in its token form [arXiv:2507.18071, equations 13 and 14]: one ratio for the whole completion.

    ``s = exp(mean over the completion of log r)``; ``s_t = sg(s) pi / sg(pi)``;
    ``l = max(-A s_t, -A clip(s_t, 1 - low, 1 + high))``. The mean is over all tokens of the completion in every
    isolation pass. The token form has GSPO's gradient where A is one number for the completion, and applies A's
    that differ by token (AR), which the plain form would average. Without dual clip. As verl, SkyRL.
    """
    mask = inputs.completion_mask
    tokens = mask.sum(dim=1, keepdim=True).clamp(min=1)
    log_ratio = ((inputs.logprobs - inputs.old_logprobs) * mask).sum(dim=1, keepdim=True) / tokens
    log_ratio = log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = (inputs.logprobs - inputs.logprobs.detach() + log_ratio).exp()
    losses, clipped = _surrogate(ratio, inputs.advantages, config)
    return TokenLosses(losses, clipped, _nowhere(losses))


def cispo_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """CISPO [arXiv:2506.13585, equations 4 and 5]: the ratio is a clipped weight, and no token loses its gradient.

    ``l = -sg(clip(r, 1 - low, 1 + high)) A logprob``. The value of the loss means nothing; its gradient does. As
    TRL, verl.
    """
    ratio = inputs.log_ratio.detach().exp()
    weight = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses = -weight * inputs.advantages * inputs.logprobs
    return TokenLosses(losses, weight != ratio, _nowhere(ratio))


def dppo_tv_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """DPPO with total variation [arXiv:2602.04879]: a token is held back by how far its *probability* moved.

    ``l = -sg(min(r, 20)) A logprob``, and 0 where the token has moved with the sign of A and
    ``|pi - pi_old| > threshold``. Ratio clipping stops improbable tokens first, at the same ratio but a far
    smaller change of the policy; this does not. As verl. Where the engine's log-probabilities are the old ones r
    has no bound but the engine correction's, as in prime-rl.
    """
    change = (inputs.logprobs.detach().exp() - inputs.old_logprobs.exp()).abs()
    return _within_divergence(inputs, change, config.dppo_threshold or 0.2)


def dppo_kl_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """DPPO with the KL divergence of "this token or another" [arXiv:2602.04879]; otherwise `dppo_tv_loss`.

    ``KL = p log(p / q) + (1 - p) log((1 - p) / (1 - q))`` with ``p = pi_old`` and ``q = pi``. As verl.
    """
    old, new = inputs.old_logprobs, inputs.logprobs.detach()
    p, q = old.exp(), new.exp()
    divergence = p * (old - new) + (1 - p) * (
        torch.log1p(-p.clamp(max=_BELOW_1)) - torch.log1p(-q.clamp(max=_BELOW_1))
    )
    return _within_divergence(inputs, divergence, config.dppo_threshold or 0.05)


def sapo_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """SAPO [arXiv:2511.20347]: a soft gate in place of the clip.

    ``l = -(4 / tau) sigmoid(tau (r - 1)) A`` with ``tau = sapo_tau_positive`` where ``A > 0``, else
    ``sapo_tau_negative``: the gradient is that of ``-A r`` at ``r = 1`` and fades on both sides. As TRL, verl.
    """
    ratio = inputs.log_ratio.exp()
    tau = torch.where(inputs.advantages > 0, config.sapo_tau_positive, config.sapo_tau_negative)
    losses = -4 / tau * torch.sigmoid(tau * (ratio - 1)) * inputs.advantages
    return TokenLosses(losses, _nowhere(ratio), _nowhere(ratio))


def gmpo_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """GMPO [arXiv:2507.20673]: the geometric mean of ratios that are clipped one by one.

    ``c_t = min(log r, high)`` where ``A > 0``, ``max(log r, -low)`` where ``A < 0``; ``s`` is exp of the mean of c
    over the completion; ``l_t = -A s exp(c_t - sg(c_t))``, whose mean over the completion is ``-A s``. Token form
    as in `gspo_loss`: the gradient of TRL's and verl's where A is one number, and AR applies token by token.
    """
    log_ratio = inputs.log_ratio
    good = inputs.advantages > 0
    bounded = torch.where(good, log_ratio.clamp(max=config.clip_high), log_ratio.clamp(min=-config.clip_low))
    bounded = torch.where(inputs.advantages == 0, 0.0, bounded)
    mask = inputs.completion_mask
    mean = (bounded.detach() * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    losses = -inputs.advantages * (mean + bounded - bounded.detach()).exp()
    return TokenLosses(losses, bounded != log_ratio, _nowhere(losses))


def clip_cov_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """Clip-Cov [arXiv:2505.22617]: the clipped surrogate, and 0 at a few tokens of large covariance.

    Without dual clip; `trainer.algorithm.chosen_tokens` says which tokens. As verl.
    """
    losses, clipped = _surrogate(inputs.log_ratio.exp(), inputs.advantages, config)
    held = _chosen(inputs)
    return TokenLosses(losses * ~held, clipped | held, _nowhere(losses))


def kl_cov_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """KL-Cov [arXiv:2505.22617]: ``-A r`` without clip, plus ``coef |log r|`` at large covariances.

    `trainer.algorithm.chosen_tokens` says which tokens. As verl, but that a log-ratio that rounding alone can make
    counts as 0: the gradient of its size is its sign, at full strength however small it is.
    """
    losses = -inputs.advantages * inputs.log_ratio.exp()
    distance = inputs.log_ratio.abs()
    penalty = config.chosen_coef * distance * (_chosen(inputs) & (distance > _ROUNDING))
    return TokenLosses(losses + penalty, _nowhere(losses), _nowhere(losses))


def lp_reg_loss(inputs: LossInputs, config: AlgorithmConfig) -> TokenLosses:
    """Lp-Reg [arXiv:2510.03222]: bad improbable tokens are pulled to a proxy that has more of them.

    The clipped surrogate; at chosen tokens whose probability is below the proxy's, ``-A r + coef k3`` with
    ``k3 = e^d - d - 1 <= 10``, ``d = log proxy - logprob``. The proxy is pi_old without the tokens below 0.02 of
    the most probable one's probability, renormalised. As the authors' code, which chooses in every micro-batch.
    """
    losses, clipped = _surrogate(inputs.log_ratio.exp(), inputs.advantages, config)
    if inputs.chosen is None or inputs.proxy_logprobs is None:
        return TokenLosses(losses, clipped, _nowhere(losses))
    pulled = inputs.chosen & (inputs.logprobs.detach() < inputs.proxy_logprobs)
    distance = torch.where(pulled, inputs.proxy_logprobs, inputs.logprobs.detach()) - inputs.logprobs
    distance = distance.clamp(max=MAX_LOG_RATIO)
    penalty = config.chosen_coef * (distance.exp() - distance - 1).clamp(max=10.0)
    losses = torch.where(pulled, -inputs.advantages * inputs.log_ratio.exp() + penalty, losses)
    return TokenLosses(losses, clipped & ~pulled, _nowhere(losses))


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "clipped": clipped_loss,
    "gspo": gspo_loss,
    "gmpo": gmpo_loss,
    "cispo": cispo_loss,
    "dppo_tv": dppo_tv_loss,
    "dppo_kl": dppo_kl_loss,
    "sapo": sapo_loss,
    "clip_cov": clip_cov_loss,
    "kl_cov": kl_cov_loss,
    "lp_reg": lp_reg_loss,
}

_RATIO_CAP = 20.0  # of DPPO's weight, as in verl
_ROUNDING = 1e-5  # of a log-ratio in float32
_BELOW_1 = 1 - 1e-7  # of probabilities whose complement is divided by


def _surrogate(ratio: Tensor, advantages: Tensor, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    return torch.maximum(unclipped, clipped), clipped > unclipped


def _chosen(inputs: LossInputs) -> Tensor:
    return _nowhere(inputs.logprobs) if inputs.chosen is None else inputs.chosen


def _within_divergence(inputs: LossInputs, divergence: Tensor, threshold: float) -> TokenLosses:
    moved_with_advantage = (inputs.logprobs.detach() - inputs.old_logprobs) * inputs.advantages > 0
    held_back = moved_with_advantage & (divergence > threshold)
    ratio = inputs.log_ratio.detach().exp()
    if inputs.rollout_logprobs is not None:
        ratio = ratio.clamp(max=_RATIO_CAP)
    losses = -ratio * inputs.advantages * inputs.logprobs * ~held_back
    return TokenLosses(losses, held_back, _nowhere(ratio))


def _nowhere(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.bool)
