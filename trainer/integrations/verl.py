"""AR [arXiv:2505.12929] for verl: wraps any of its policy losses. See docs/guides/verl.md.

verl imports this module because ``actor_rollout_ref.model.external_lib`` or
``VERL_USE_EXTERNAL_MODULES`` lists it, and through the ``_target_`` of its policy loss.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn, register_policy_loss
from verl.workers.config import PolicyLossConfig

from rewards.errors import CodedValueError
from trainer.algorithm.reweighting import reweight

LOSS_MODE = "ar"


@dataclass
class ARPolicyLossConfig(PolicyLossConfig):  # type: ignore[misc]
    """verl's policy loss settings plus AR's strength and the name of the wrapped loss.

    Raises:
        ValueError: ``ar_alpha`` is outside [0, 1], or ``ar_loss`` is ``ar`` itself.
    """

    loss_mode: str = LOSS_MODE
    ar_alpha: float = 0.0
    ar_loss: str = "vanilla"

    def __post_init__(self) -> None:
        if not 0 <= self.ar_alpha <= 1:
            raise CodedValueError(
                f"policy_loss.ar_alpha is {self.ar_alpha}: choose a number from 0 to 1; 0 is off",
                code="invalid-alpha",
            )
        if self.ar_loss == LOSS_MODE:
            raise CodedValueError(
                "policy_loss.ar_loss is ar: choose one of verl's own losses, such as vanilla",
                code="ar-inside-ar",
            )


@register_policy_loss(LOSS_MODE)  # type: ignore[untyped-decorator]
def ar_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Compute the loss ``config.policy_loss.ar_loss`` on reweighted advantages [B, T].

    The arguments and the result, a loss [] and its metrics, are those of every policy loss in verl.
    """
    settings = config.policy_loss
    return get_policy_loss_fn(settings.ar_loss)(  # type: ignore[no-any-return]
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=reweight(advantages, old_log_prob, settings.ar_alpha) * response_mask,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
