"""AR and Lopti [arXiv:2505.12929] as a trainer for verl: its synchronous trainer with an actor
update on reweighted advantages in two passes. See docs/guides/verl.md.

verl imports this module because ``VERL_USE_EXTERNAL_MODULES`` lists it, and finds the trainer by
``trainer.v1.trainer_mode=ar_lopti``.
"""

from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_to_nested

from loptune.errors import ConfigError
from trainer.algorithm.passes import low_probability_tokens
from trainer.algorithm.reweighting import reweight

MODE = "ar_lopti"
SETTINGS = ("alpha", "eta")
# Policy losses in which the loss of a token depends only on that token. Other losses average over a
# completion or select tokens from the whole batch, so the mask of a pass would change their result.
TOKEN_LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gpg", "cispo", "dro")
_PASSES = 2


@register_trainer(MODE)
class ARLoptiTrainer(PPOTrainerSync):  # type: ignore[misc]
    """verl's trainer ``sync`` with Advantage Reweighting (``trainer.v1.ar_lopti.alpha``) and Lopti
    (``trainer.v1.ar_lopti.eta``); 0 turns either off.

    Lopti makes two passes over the mini-batches of a step: tokens with a probability below eta
    first, then the rest. Each pass hides the other tokens from the loss with ``response_mask``.
    verl counts the tokens of a mini-batch with ``loss_mask``, which does not change, so both passes
    divide the loss by the number of all tokens. Each pass advances the schedule of the learning
    rate by one, so the lengths of warm-up and decay are doubled.

    Raises:
        ConfigError: an unknown key, a value outside [0, 1], several PPO epochs with Lopti, or a
            setting that would change the denominators of its passes or the losses of other tokens.
    """

    def __init__(self, config: DictConfig) -> None:
        self.alpha, self.eta = _strengths(config)
        if self.eta > 0:
            _check_denominators(config.actor_rollout_ref.actor)
        with open_dict(config):
            # verl's code checks for the name "sync" wherever the synchronous trainer differs
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if self.eta > 0:
            optim = self.config.actor_rollout_ref.actor.optim
            with open_dict(self.config):
                optim.total_training_steps *= _PASSES
                if optim.lr_warmup_steps > 0:  # otherwise the warm-up is a fraction of all steps
                    optim.lr_warmup_steps *= _PASSES

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Update the actor on reweighted advantages, with Lopti in two passes."""
        fields = ["response_mask", "old_log_probs", "advantages"]
        stored = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
        )
        padded = stored.to_padded_tensor()
        mask, old_log_probs = padded["response_mask"], padded["old_log_probs"]
        if self.alpha > 0:
            reweighted = reweight(padded["advantages"], old_log_probs, self.alpha) * mask
            batch = _put(batch, stored["response_mask"], advantages=reweighted)
        if self.eta == 0:
            return super()._update_actor(batch, metrics)
        low = low_probability_tokens(old_log_probs, mask, self.eta)
        for name, tokens in {"low": low, "high": mask - low}.items():
            metrics[f"actor/{name}/tokens"] = int(tokens.sum())
            if (
                not tokens.any()
            ):  # without a gradient, Adam's momentum would still change the weights
                continue
            batch = _put(batch, stored["response_mask"], response_mask=tokens)
            of_pass: dict[str, Any] = {}
            batch = super()._update_actor(batch, of_pass)
            for key, value in of_pass.items():
                metrics[key.replace("actor", f"actor/{name}", 1)] = value
        # restore the full mask, which verl's step metrics read
        return _put(batch, stored["response_mask"], response_mask=mask)


def _put(batch: Any, layout: Tensor, **fields: Tensor) -> Any:
    """Write padded fields [B, T] of the batch to the queue, with the row lengths of ``layout``."""
    nested = {name: response_to_nested(field, layout) for name, field in fields.items()}
    return tq.kv_batch_put(
        keys=batch.keys,
        partition_id=batch.partition_id,
        fields=TensorDict(nested, batch_size=len(batch)),
    )


def _strengths(config: DictConfig) -> list[float]:
    """Return alpha and eta of ``trainer.v1.ar_lopti``; a missing value is 0.

    Raises:
        ConfigError: unknown key, or a value outside [0, 1].
    """
    place = f"trainer.v1.{MODE}"
    settings = OmegaConf.select(config, place) or {}
    for key in settings:
        if key not in SETTINGS:
            raise ConfigError(
                f"unknown key {place}.{key}",
                f"{place}.{key}",
                f"known: {', '.join(SETTINGS)}",
                code="unknown-key",
            )
    values = [settings.get(key, 0.0) for key in SETTINGS]
    for key, value in zip(SETTINGS, values, strict=True):
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(
                f"{place}.{key} is {value}",
                f"{place}.{key}",
                "choose a number from 0 to 1; 0 is off",
                code="outside-0-to-1",
            )
    return values


def _check_denominators(actor: DictConfig) -> None:
    """Check that masking tokens only removes them from the loss sum: neither the denominator of the
    sum nor the losses of other tokens may change. Check also that verl makes one epoch per step.

    Raises:
        ConfigError: a setting does not allow Lopti.
    """
    problems = {
        "loss_agg_mode": (
            actor.loss_agg_mode == "seq-mean-token-mean",
            actor.loss_agg_mode,
            "use token-mean, seq-mean-token-sum or seq-mean-token-sum-norm",
        ),
        "policy_loss.loss_mode": (
            actor.policy_loss.loss_mode not in TOKEN_LOSSES,
            actor.policy_loss.loss_mode,
            f"use {', '.join(TOKEN_LOSSES)}",
        ),
        "ppo_epochs": (actor.ppo_epochs != 1, actor.ppo_epochs, "use 1"),
    }
    for key, (is_problem, value, advice) in problems.items():
        if is_problem:
            raise ConfigError(
                f"Lopti is not possible with {key}={value}",
                f"actor_rollout_ref.actor.{key}",
                f"{advice}, or set trainer.v1.{MODE}.eta=0",
                code="lopti-not-possible",
            )
