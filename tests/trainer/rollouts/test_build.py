"""Which engine a configuration gives, on this machine and on one with GPUs; needs no vLLM."""

import logging
from types import SimpleNamespace

import pytest
import torch

from loptune.errors import ConfigError
from tests.conftest import random_model
from tests.refusals import refused
from trainer.config.reward import RewardConfig
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.rollouts import build
from trainer.rollouts.transformers import TransformersEngine
from trainer.rollouts.vllm import server

TOKENIZER = SimpleNamespace(
    get_vocab=lambda: {str(token_id): token_id for token_id in range(61)}, pad_token_id=0
)


@pytest.fixture
def made(monkeypatch):
    """The engines of vLLM that were asked for, which are words here."""
    asked = []
    monkeypatch.setattr(
        build, "get_engine", lambda model, setup, run: asked.append("vllm") or "vllm"
    )
    monkeypatch.setattr(build, "engine_setup", lambda config, model, ranks: None)
    monkeypatch.setattr(build, "context_length", lambda config: 512)
    monkeypatch.setattr(
        server, "VllmServerEngine", lambda *arguments: asked.append("server") or "server"
    )
    return asked


def engine_of(on_gpu, **changes):
    config = apply_overrides(
        TrainConfig(), {f"rollout.{key}": value for key, value in changes.items()}
    )
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
def test_auto_is_vllm_where_there_are_a_gpu_and_vllm(
    monkeypatch, made, on_gpu, installed, wanted, expected
):
    monkeypatch.setattr(build, "vllm_installed", lambda: installed)
    monkeypatch.setattr(build, "compute_dtype", lambda model, device: torch.float32)
    engine = engine_of(on_gpu, engine=wanted)
    assert made == (["vllm"] if expected == "vllm" else [])
    assert isinstance(engine, TransformersEngine) == (expected == "transformers")


def test_auto_refuses_a_temperature_of_other_engines_when_it_takes_vllm(monkeypatch, made):
    monkeypatch.setattr(build, "vllm_installed", lambda: True)
    monkeypatch.setattr(build, "compute_dtype", lambda model, device: torch.float32)
    with refused("temperature-of-vllm", ConfigError):
        engine_of(True, engine="auto", temperature=3.0)
    assert isinstance(engine_of(False, engine="auto", temperature=3.0), TransformersEngine)


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


def test_rewards_are_scored_as_configured():
    config = RewardConfig(functions={"format": 2.0}, timeout_s=1.5, memory_mb=600, workers=1)
    rewards = build.build_rewards(config, max_failure_rate=0.25)
    try:
        (scored,) = rewards.score(["<think></think><answer></answer>"], [None])
        assert scored.score.reward == 2.0
        assert (rewards._timeout_s, rewards._max_failure_rate) == (1.5, 0.25)
    finally:
        rewards.close()
