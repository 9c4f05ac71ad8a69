"""The check at load, with vLLM on the CPU as the sampling path."""

import logging
from dataclasses import replace

import pytest
import torch

from tests.refusals import refused
from tests.trainer.load_check.runs import Run, saved
from tests.trainer.rollouts.vllm.models import random_experts, random_qwen
from trainer.config.rollout import VllmConfig
from trainer.rollouts.vllm.engine import VllmEngine
from trainer.rollouts.vllm.setup import EngineSetup

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm


@pytest.fixture(params=["dense", "experts"], scope="module")
def started(request, tmp_path_factory):
    """A run whose completions are sampled by vLLM."""
    if request.param == "experts":
        model = random_experts(vocabulary=258)
    else:
        model = random_qwen(tied=True, layers=2, vocabulary=258)
    run = Run(saved(tmp_path_factory.mktemp("model"), model))
    setup = EngineSetup(run.config.model.name_or_path, 128, settings=VllmConfig())
    run.engine = VllmEngine(run.models.causal_lm, setup)
    run.engine.sync_weights(run.models.causal_lm)
    yield run
    run.engine.close()


def test_sound_run_passes(started, caplog):
    with caplog.at_level(logging.INFO):
        started.check()
    assert "agree within 0.001 nats (" in caplog.text


def test_weights_that_were_not_synced_are_found(started):
    weight = started.models.causal_lm.model.layers[0].self_attn.o_proj.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(1.5)
    started.engine.sync_weights(started.models.causal_lm)
    with torch.no_grad():
        weight.copy_(before)
    with refused("paths-differ", names=["sampling of ", "the engine's weights"]):
        started.check()
    started.engine.sync_weights(started.models.causal_lm)


def test_another_temperature_is_found(started, monkeypatch):
    generate = started.engine.generate

    def warmer(prompts, seeds, params):
        return generate(prompts, seeds, replace(params, temperature=1.0))

    monkeypatch.setattr(started.engine, "generate", warmer)
    with refused("paths-differ", names=["sampling of ", "temperature"]):
        started.check()
