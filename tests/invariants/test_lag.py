"""Completions that are sampled one update before they are trained on."""

import copy
import itertools
import threading

import pytest
import torch

from tests.trainer.test_loop import assert_same_end, build, parameters, resumed_after_two_steps, small_config
from trainer import loop
from trainer.checkpoint.files import damaged_files
from trainer.errors import EngineError
from trainer.rollouts.engine import NO_RUN
from trainer.rollouts.pending import PENDING_FILE
from trainer.rollouts.transformers import TransformersEngine

STALE = {"rollout.lag": 1, "algorithm.engine_correction.cap": 2.0}
ON_SERVERS = STALE | {"rollout.engine": "vllm", "rollout.vllm.mode": "server"}
WAIT_S = 60


class ServerEngine:
    """In the place of vLLM servers: samples from a copy of the weights that it was given last.

    Args:
        model: the policy.
        pad_token_id: of its tokenizer.
        updated: where it is given, sampling in a thread does not end before the update that follows the last
            synchronisation.
    """

    def __init__(self, model, pad_token_id: int, updated: threading.Event | None = None) -> None:
        self._copy = copy.deepcopy(model)
        self._engine = TransformersEngine(self._copy, pad_token_id=pad_token_id)
        self._closed = threading.Event()
        self.updated = updated
        self.events: list[str] = []
        self.error: Exception | None = None

    def sync_weights(self, policy_model):
        self.events.append("sync")
        if self.updated is not None:
            self.updated.clear()
        self._copy.load_state_dict(policy_model.state_dict())

    def generate(self, prompts, seeds, params):
        if threading.current_thread() is not threading.main_thread():
            self.events.append("sampling begins")
            if self.error is not None:
                raise self.error
            if self.updated is not None:
                assert self.updated.wait(WAIT_S), "nothing was updated while this sampled"
            if self._closed.is_set():
                raise EngineError("closed", "engine", "")
        samples = self._engine.generate(prompts, seeds, params)
        if threading.current_thread() is not threading.main_thread():
            self.events.append("sampling ends")
        return samples

    def sleep(self):
        pass

    def wake(self):
        pass

    def metrics(self):
        return {}

    def close(self):
        self._closed.set()
        if self.updated is not None:
            self.updated.set()


def build_on_servers(config, folder, monkeypatch, updated=None):
    def build_engine(config, model, tokenizer, whole_weights, run=NO_RUN):
        return ServerEngine(model, tokenizer.pad_token_id, updated)

    monkeypatch.setattr(loop, "build_engine", build_engine)
    return build(config, folder)


@pytest.fixture(scope="module")
def whole(tiny_policy, tmp_path_factory):
    """A run that samples in turn; with the weights by which each call of its engine sampled."""
    trainer = build(small_config(tiny_policy, **STALE), tmp_path_factory.mktemp("runs") / "whole")
    generate, sampled_by = trainer.engine.generate, []

    def recording(prompts, seeds, params):
        if len(prompts) == 3:  # of a step; an evaluation has 8
            sampled_by.append(parameters(trainer))
        return generate(prompts, seeds, params)

    trainer.engine.generate = recording
    before = [parameters(trainer)]
    step = trainer.training_step

    def remembering():
        metrics = step()
        before.append(parameters(trainer))
        return metrics

    trainer.training_step = remembering
    trainer.train()
    trainer.close()
    return trainer, sampled_by, before


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_every_step_but_the_first_is_sampled_by_the_weights_before_the_last_update(whole):
    _, sampled_by, before = whole
    assert len(before) == 5 and len(sampled_by) == 4  # none for a step that does not come
    assert all(not same(one, other) for one, other in itertools.pairwise(before))
    for step, weights in enumerate(sampled_by):
        assert same(weights, before[max(0, step - 1)])


def test_the_engine_metrics_hold_the_move_of_the_policy(whole):
    steps = whole[0].tracker.steps
    assert steps[1]["rollout/engine_logprob_diff_max"] < 1e-4  # nothing has moved yet
    for step in (2, 3, 4):
        assert steps[step]["rollout/engine_logprob_diff_max"] > 1e-3
        assert "rollout/importance_cut" in steps[step]


def test_a_run_resumes_as_if_never_stopped(whole, tiny_policy, tmp_path):
    second = resumed_after_two_steps(small_config(tiny_policy, **STALE), tmp_path / "run")
    assert_same_end(whole[0], second)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert not (checkpoints / "step-4" / PENDING_FILE).exists()
    damaged = checkpoints / "step-2" / PENDING_FILE
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert damaged_files(checkpoints / "step-2") == [PENDING_FILE]


def test_without_lag_pending_completions_of_a_checkpoint_are_left_alone(tiny_policy, tmp_path):
    first = build(small_config(tiny_policy, **STALE), tmp_path / "run")
    first.run_period()
    first.run_period()
    first.close("KILLED")
    second = build(small_config(tiny_policy), tmp_path / "run")
    assert second.resume() == 2
    assert second.training_step()["rollout/engine_logprob_diff_max"] < 1e-4
    second.close("KILLED")


def test_on_servers_sampling_overlaps_the_update_and_the_numbers_stay(whole, tiny_policy, tmp_path, monkeypatch):
    updated = threading.Event()
    config = small_config(tiny_policy, **ON_SERVERS)
    trainer = build_on_servers(config, tmp_path / "run", monkeypatch, updated)
    events, diagnostics = trainer.engine.events, trainer._diagnostics

    def after_the_update(*args):
        events.append("updated")
        updated.set()
        return diagnostics(*args)

    trainer._diagnostics = after_the_update
    trainer.train()
    trainer.close()
    overlapped = ["sampling begins", "updated", "sampling ends", "sync"]
    assert events == ["sync", *overlapped * 3, "updated", "sync"]
    assert_same_end(whole[0], trainer)


def test_an_error_of_sampling_beside_the_update_ends_the_run(tiny_policy, tmp_path, monkeypatch):
    trainer = build_on_servers(small_config(tiny_policy, **ON_SERVERS), tmp_path / "run", monkeypatch)
    trainer.engine.error = EngineError("the server is gone", "server", "restart it")
    with pytest.raises(EngineError, match="the server is gone"):
        trainer.training_step()
    assert trainer.step == 0
    trainer.close("FAILED")


def test_a_run_interrupted_in_its_update_ends_what_is_sampled_beside_it(tiny_policy, tmp_path, monkeypatch):
    config = small_config(tiny_policy, **ON_SERVERS)
    trainer = build_on_servers(config, tmp_path / "run", monkeypatch, threading.Event())

    def interrupted(*args):
        raise KeyboardInterrupt

    trainer.updater.run_pass = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.training_step()
    trainer.close("KILLED")
    assert "sampling" not in {thread.name for thread in threading.enumerate()}
