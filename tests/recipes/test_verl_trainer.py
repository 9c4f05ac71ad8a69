"""AR and Lopti as a trainer of verl: its own classes, configuration and loss, against the vectors
of the published implementation.
"""

import json
import os
import subprocess
import sys
from importlib import import_module

import pytest
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from loptune.errors import ConfigError
from tests.paths import DATA

MODE = import_module("trainer.integrations.verl_trainer").MODE
VECTORS = json.loads((DATA / "reference_vectors.json").read_text())
PLAIN = ("trainer.v1.trainer_mode=sync",)
NEEDED = ("actor_rollout_ref.actor.use_dynamic_bsz=true",)  # verl has no default microbatch


def config_of(*overrides):
    """verl's own configuration, composed from its package."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", [f"trainer.v1.trainer_mode={MODE}", *NEEDED, *overrides])


def trainer_of(*overrides):
    return get_trainer_cls(MODE)(config_of(*overrides))


def published(case):
    """verl's overrides for a case's settings."""
    return (
        f"actor_rollout_ref.actor.clip_ratio_low={case['clip_low']}",
        f"actor_rollout_ref.actor.clip_ratio_high={case['clip_high']}",
        f"actor_rollout_ref.actor.clip_ratio_c={case['dual_clip']}",
        "actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
        f"actor_rollout_ref.actor.kl_loss_coef={case['kl_coef']}",
    )


class Queue:
    """verl's transfer queue in this process: one batch, fields as jagged tensors."""

    def __init__(self, mask, **fields):
        self.lengths = [int(row.nonzero().max()) + 1 for row in mask]
        fields |= {"response_mask": mask.long(), "loss_mask": mask.long()}
        self.fields = {name: self.jagged(field) for name, field in fields.items()}

    def jagged(self, field):
        rows = [row[:length] for row, length in zip(field, self.lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    def padded(self, name):
        return self.fields[name].to_padded_tensor(0.0)

    def batch(self):
        keys = [str(row) for row in range(len(self.lengths))]
        return KVBatchMeta(partition_id="train", keys=keys, tags=[{} for _ in keys])

    def get(self, keys, partition_id, select_fields):
        chosen = {name: self.fields[name] for name in select_fields}
        return TensorDict(chosen, batch_size=len(keys))

    def put(self, keys, partition_id, fields):
        self.fields.update(fields.items())
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{} for _ in keys])


class Actor:
    """The workers' part of an update: verl's own loss of the queue's batch, and its gradient."""

    def __init__(self, queue, logprobs, config):
        self.queue = queue
        self.logprobs = logprobs
        self.config = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.updates = []

    def update_actor(self, batch):
        logprobs = self.logprobs.clone().requires_grad_()
        # the model's outputs over prompts of one token and completions, shifted left by one
        rows = zip(logprobs, self.queue.lengths, strict=True)
        outputs = torch.cat([torch.cat([row[:length], row.new_zeros(1)]) for row, length in rows])
        responses = self.queue.jagged(torch.zeros_like(logprobs))
        prompts = torch.nested.as_nested_tensor(
            [torch.zeros(1) for _ in self.queue.lengths], layout=torch.jagged
        )
        fields = {**self.queue.fields, "prompts": prompts, "responses": responses}
        data = TensorDict(fields, batch_size=len(batch.keys))
        # as the engines of verl do before they split a mini-batch
        tensordict_utils.assign_non_tensor(
            data,
            batch_num_tokens=int(data["loss_mask"].values().sum()),
            global_batch_size=len(batch.keys),
            dp_size=1,
        )
        loss, _ = ppo_loss(self.config, {"log_probs": outputs}, data)
        loss.backward()
        self.updates.append((self.queue.padded("response_mask"), loss.detach(), logprobs.grad))
        return {"metrics": {"mfu": [0.5], "grad_norm": [float(logprobs.grad.norm())]}}


def update(trainer, queue, logprobs, monkeypatch):
    """One actor update of the trainer; what the workers did, and the metrics."""
    monkeypatch.setattr(tq, "kv_batch_get", queue.get)
    monkeypatch.setattr(tq, "kv_batch_put", queue.put)
    trainer.actor_rollout_wg = Actor(queue, logprobs, trainer.config)
    metrics = {}
    trainer._update_actor(queue.batch(), metrics)
    return trainer.actor_rollout_wg.updates, metrics


def tensors(case, *names):
    return [torch.tensor(case[name]) for name in names]


@pytest.mark.parametrize("number", range(len(VECTORS["lopti"])))
def test_the_two_passes_are_those_of_the_published_implementation(number, monkeypatch):
    case = VECTORS["lopti"][number]
    logprobs, old, ref, advantages, mask = tensors(
        case, "logprobs", "old_logprobs", "ref_logprobs", "advantages", "mask"
    )
    queue = Queue(mask, old_log_probs=old, ref_log_prob=ref, advantages=advantages)
    trainer = trainer_of(f"+trainer.v1.{MODE}.eta={case['eta']}", *published(case))
    updates, metrics = update(trainer, queue, logprobs, monkeypatch)
    assert len(updates) == len(case["low_then_high"]) == 2
    for (tokens, loss, gradient), expected in zip(updates, case["low_then_high"], strict=True):
        keep, expected_gradient = tensors(expected, "keep", "grad_logprobs")
        torch.testing.assert_close(tokens, keep[:, : tokens.shape[1]].to(tokens.dtype))
        torch.testing.assert_close(loss.item(), expected["loss"], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-8)
    counts = metrics["actor/low/tokens"], metrics["actor/high/tokens"]
    assert counts == tuple(int(torch.tensor(part["keep"]).sum()) for part in case["low_then_high"])
    assert metrics["actor/low/grad_norm"] == pytest.approx(float(updates[0][2].norm()))
    assert metrics["actor/high/grad_norm"] == pytest.approx(float(updates[1][2].norm()))
    torch.testing.assert_close(queue.padded("response_mask"), queue.padded("loss_mask"))


@pytest.mark.parametrize("number", range(len(VECTORS["advantage_reweighting"])))
def test_the_update_sees_the_published_reweighted_advantages(number, monkeypatch):
    case = VECTORS["advantage_reweighting"][number]
    old, advantages, mask, expected = tensors(
        case, "old_logprobs", "advantages", "mask", "reweighted"
    )
    queue = Queue(mask, old_log_probs=old, advantages=advantages * mask)
    trainer = trainer_of(f"+trainer.v1.{MODE}.alpha={case['alpha']}")
    updates, _ = update(trainer, queue, old, monkeypatch)
    seen = queue.padded("advantages")
    torch.testing.assert_close(seen, (expected * mask)[:, : seen.shape[1]], rtol=1e-5, atol=1e-7)
    assert len(updates) == 1


def test_without_strengths_an_update_is_verls_own(monkeypatch):
    case = VECTORS["lopti"][0]
    logprobs, old, ref, advantages, mask = tensors(
        case, "logprobs", "old_logprobs", "ref_logprobs", "advantages", "mask"
    )
    outcomes = []
    for trainer in (
        trainer_of(*published(case)),
        PPOTrainerSync(config_of(*published(case), *PLAIN)),
    ):
        queue = Queue(mask, old_log_probs=old, ref_log_prob=ref, advantages=advantages)
        outcomes.append(update(trainer, queue, logprobs, monkeypatch))
    (ours, our_metrics), (verls, their_metrics) = outcomes
    for part, expected in zip(ours[0], verls[0], strict=True):
        torch.testing.assert_close(part, expected, rtol=0, atol=0)
    assert our_metrics == their_metrics


def test_a_pass_without_tokens_makes_no_update(monkeypatch):
    old = torch.tensor([[0.9, 0.8]]).log()
    queue = Queue(torch.ones(1, 2), old_log_probs=old, advantages=torch.ones(1, 2))
    updates, metrics = update(trainer_of(f"+trainer.v1.{MODE}.eta=0.5"), queue, old, monkeypatch)
    assert (len(updates), metrics["actor/low/tokens"], metrics["actor/high/tokens"]) == (1, 0, 2)


@pytest.mark.parametrize("loss", import_module("trainer.integrations.verl_trainer").TOKEN_LOSSES)
def test_the_gradients_of_both_passes_add_up_to_that_of_one_update(loss, monkeypatch):
    """With the same policy in both passes, and for every policy loss that Lopti accepts."""
    case = VECTORS["lopti"][0]
    logprobs, old, ref, advantages, mask = tensors(
        case, "logprobs", "old_logprobs", "ref_logprobs", "advantages", "mask"
    )
    gradients = []
    for eta in (0.0, case["eta"]):
        queue = Queue(
            mask,
            old_log_probs=old,
            rollout_log_probs=old,
            ref_log_prob=ref,
            advantages=advantages * mask,
        )
        trainer = trainer_of(
            f"+trainer.v1.{MODE}.eta={eta}",
            f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}",
            "actor_rollout_ref.actor.policy_loss.dro_beta=0.1",
            *published(case),
        )
        updates, _ = update(trainer, queue, logprobs, monkeypatch)
        gradients.append(sum(gradient for _, _, gradient in updates))
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-8)


def test_verl_finds_the_trainer_by_its_external_modules():
    code = f"from verl.trainer.ppo.v1 import get_trainer_cls; print(get_trainer_cls({MODE!r}))"
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "trainer.integrations.verl_trainer"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    assert "ARLoptiTrainer" in ended.stdout


def test_verls_code_sees_its_synchronous_trainer():
    trainer = trainer_of(f"+trainer.v1.{MODE}.alpha=0.3", f"+trainer.v1.{MODE}.eta=0.5")
    assert isinstance(trainer, PPOTrainerSync)
    assert (trainer.alpha, trainer.eta, trainer.trainer_mode) == (0.3, 0.5, "sync")
    plain = PPOTrainerSync(config_of(*PLAIN))
    assert type(trainer.replay_buffer) is type(plain.replay_buffer)


@pytest.mark.parametrize(("eta", "factor"), [(0.0, 1), (0.5, 2)])
def test_two_passes_double_the_schedule_of_the_learning_rate(eta, factor, monkeypatch):
    def set_length(trainer):  # what verl does behind the data
        trainer.config.actor_rollout_ref.actor.optim.total_training_steps = 100

    monkeypatch.setattr(PPOTrainerSync, "_init_dataloader", set_length)
    trainer = trainer_of(
        f"+trainer.v1.{MODE}.eta={eta}", "actor_rollout_ref.actor.optim.lr_warmup_steps=7"
    )
    trainer._init_dataloader()
    optim = trainer.config.actor_rollout_ref.actor.optim
    assert (optim.total_training_steps, optim.lr_warmup_steps) == (100 * factor, 7 * factor)


@pytest.mark.parametrize(
    ("override", "key", "code"),
    [
        (f"+trainer.v1.{MODE}.alhpa=0.3", f"trainer.v1.{MODE}.alhpa", "unknown-key"),
        (f"+trainer.v1.{MODE}.alpha=1.5", f"trainer.v1.{MODE}.alpha", "outside-0-to-1"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", None, "lopti-not-possible"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", None, "lopti-not-possible"),
        ("actor_rollout_ref.actor.ppo_epochs=2", None, "lopti-not-possible"),
    ],
)
def test_settings_that_cannot_work_are_refused(override, key, code):
    with pytest.raises(ConfigError) as refused:
        trainer_of(override, f"+trainer.v1.{MODE}.eta=0.5")
    assert refused.value.code == code
    assert refused.value.where == (key or override.split("=")[0])


def test_verls_configuration_builds_the_policy_loss_ar():
    loss = "actor_rollout_ref.actor.policy_loss"
    config = config_of(
        *PLAIN,
        f"{loss}._target_=trainer.integrations.verl.ARPolicyLossConfig",
        f"{loss}.loss_mode=ar",
        f"+{loss}.ar_alpha=0.3",
        f"+{loss}.ar_loss=vanilla",
    )
    built = omega_conf_to_dataclass(config.actor_rollout_ref.actor).policy_loss
    assert (built.loss_mode, built.ar_alpha, built.ar_loss) == ("ar", 0.3, "vanilla")
