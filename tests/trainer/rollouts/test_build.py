"""Which engine a configuration gives, on this machine and on one with GPUs; needs no vLLM."""

import logging
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import random_model
from trainer.config.schema import RewardConfig, TrainConfig, apply_overrides
from trainer.errors import ConfigError
from trainer.rollouts import build
from trainer.rollouts.engine import NO_RUN
from trainer.rollouts.transformers import TransformersEngine
from trainer.rollouts.vllm import server

TOKENIZER = SimpleNamespace(pad_token_id=0)


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """The engines of vLLM that were asked for, which are words here."""
    asked: list[str] = []
    monkeypatch.setattr(build, "engine_for", lambda model, setup, run: asked.append("vllm") or "vllm")
    monkeypatch.setattr(build, "engine_setup", lambda config, model, ranks: None)
    monkeypatch.setattr(build, "context_length", lambda config, model: 512)
    monkeypatch.setattr(server, "VllmServerEngine", lambda *arguments: asked.append("server") or "server")
    return asked


def engine_of(on_gpu: bool, **changes):
    config = apply_overrides(TrainConfig(), {f"rollout.{key}": value for key, value in changes.items()})
    model = random_model()
    if on_gpu:  # a model whose parameters say that they are there
        model.parameters = lambda: iter([SimpleNamespace(device=torch.device("cuda", 0))])
    return build.build_engine(config, model, TOKENIZER)


@pytest.mark.parametrize(
    ("on_gpu", "installed", "wanted", "expected"),
    [
        (False, True, "auto", "transformers"),  # on a CPU vLLM is taken where it is named
        (False, True, "vllm", "vllm"),
        (True, True, "auto", "vllm"),
        (True, False, "auto", "transformers"),
        (True, True, "transformers", "transformers"),
    ],
)
def test_auto_is_vllm_where_there_are_a_gpu_and_vllm(monkeypatch, made, on_gpu, installed, wanted, expected):
    monkeypatch.setattr(build, "vllm_installed", lambda: installed)
    monkeypatch.setattr(build, "compute_dtype", lambda model, device: torch.float32)
    engine = engine_of(on_gpu, engine=wanted)
    assert made == (["vllm"] if expected == "vllm" else [])
    assert isinstance(engine, TransformersEngine) == (expected == "transformers")


@pytest.mark.parametrize("wanted", ["auto", "vllm"])
def test_a_server_is_used_from_any_machine(made, wanted):
    assert engine_of(False, engine=wanted, **{"vllm.mode": "server"}) == "server"
    assert made == ["server"]


def test_slow_sampling_on_a_gpu_is_said_and_on_a_cpu_it_is_usual(monkeypatch, made, caplog):
    monkeypatch.setattr(build, "vllm_installed", lambda: False)
    monkeypatch.setattr(build, "compute_dtype", lambda model, device: torch.float32)
    with caplog.at_level(logging.WARNING):
        engine_of(False)
        assert caplog.messages == []
        engine_of(True)
    assert caplog.messages == [build.SLOW]


def test_the_engine_on_a_cpu_takes_the_settings_of_the_run():
    engine = engine_of(False, max_batch_tokens=77)
    assert (engine.pad_token_id, engine.max_batch_tokens, engine.on_finished) == (0, 77, NO_RUN.on_finished)


def test_an_unknown_reward_is_refused_with_its_key():
    with pytest.raises(ConfigError, match="did you mean math") as refused:
        build.build_rewards(RewardConfig(functions={"maths": 1.0}))
    assert refused.value.where == "reward.functions"
    assert "module:function" in refused.value.hint


def test_rewards_are_scored_as_configured():
    config = RewardConfig(functions={"format": 2.0}, failure_score=-5.0, timeout_s=1.5, memory_mb=600, workers=1)
    rewards = build.build_rewards(config, max_failure_rate=0.25)
    try:
        (scored,) = rewards.score(["<think></think><answer></answer>"], [None])
        assert scored.score.reward == 2.0
        assert (rewards._failure_score, rewards._timeout_s, rewards._max_failure_rate) == (-5.0, 1.5, 0.25)
    finally:
        rewards.close()
