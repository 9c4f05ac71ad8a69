"""A real vLLM engine on the CPU against the model whose weights it was given."""

import copy
import dataclasses
import gc
import os
import random
import weakref

import numpy as np
import psutil
import pytest
import torch

from loptune.errors import EngineError
from tests.refusals import refused
from tests.trainer.rollouts.vllm.models import (
    AGREEMENT,
    STOP,
    adamw_step,
    largest_difference,
    prompts,
    random_experts,
    random_qwen,
    saved_config,
)
from trainer.config.model import LoraConfig
from trainer.config.rollout import VllmConfig
from trainer.policy.adapters import adapter_disabled, adapter_tensors, add_adapter
from trainer.rollouts.engine import EngineContext, SamplingParams
from trainer.rollouts.vllm import sync
from trainer.rollouts.vllm.engine import VllmEngine, get_engine
from trainer.rollouts.vllm.setup import EngineSetup

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

LENGTHS = (40, 70, 9)
SEEDS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


@pytest.fixture(params=["tied", "untied", "experts"])
def model(request):
    if request.param == "experts":
        return random_experts()
    return random_qwen(tied=request.param == "tied")


@pytest.fixture
def start(tmp_path):
    """Builds engines and closes them all."""
    engines = []

    def build(model, **settings):
        length = settings.pop("max_model_len", 256)
        setup = EngineSetup(saved_config(tmp_path, model), length, settings=VllmConfig(**settings))
        engines.append(VllmEngine(model, setup))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def weights_of(worker):
    return [weakref.ref(weight) for weight in worker.model_runner.model.parameters()]


def test_nothing_of_an_engine_is_left_once_it_has_ended(start, monkeypatch):
    """On a GPU the memory is looked for as the engine ends, and not again."""
    engine = start(random_qwen(tied=True))
    [weights] = engine.llm.collective_rpc(weights_of)
    left = []
    collect = gc.collect

    def counting():
        collect()
        left.append(sum(weight() is not None for weight in weights))

    monkeypatch.setattr(gc, "collect", counting)
    engine.close()
    assert left[-1] == 0, left


def test_agrees_with_the_policy_after_every_optimizer_step(model, start):
    engine = start(model)
    engine.sync_weights(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    asked = prompts(LENGTHS)
    params = SamplingParams(temperature=0.7, max_new_tokens=32, stop_token_ids=(STOP,))
    samples = engine.generate(asked, SEEDS, params)
    assert largest_difference(model, asked, samples, 0.7) < AGREEMENT
    for step in range(3):
        before = copy.deepcopy(model)
        adamw_step(model, optimizer, asked, samples)
        engine.sync_weights(model)
        samples = engine.generate(
            asked, [[seed + 100 * step for seed in row] for row in SEEDS], params
        )
        difference = largest_difference(model, asked, samples, 0.7)
        print(f"step {step + 1}: largest difference {difference:.2e} nats")
        assert difference < AGREEMENT
        assert largest_difference(before, asked, samples, 0.7) > 0.05, (
            "the step must move the weights visibly"
        )


def test_self_check_catches_a_sync_without_the_output_embedding(model, start, monkeypatch):
    engine = start(model)
    if model.config.tie_word_embeddings:
        monkeypatch.setattr(
            "trainer.rollouts.vllm.receiver.repack_output_embedding", lambda model: None
        )
    else:
        complete = sync.named_weights
        monkeypatch.setattr(
            sync,
            "named_weights",
            lambda policy: (w for w in complete(policy) if not w[0].startswith("lm_head")),
        )
    with refused("weights-differ", EngineError):
        engine.sync_weights(model)
    assert engine.llm is None, "an engine that failed its check must be gone"


def test_agrees_with_a_policy_whose_adapter_is_trained(start):
    model = random_qwen(tied=True, layers=2)
    engine = start(model)
    add_adapter(model, LoraConfig(r=4, alpha=8.0))
    optimizer = torch.optim.AdamW(adapter_tensors(model).values(), lr=2e-2)
    asked = prompts(LENGTHS)
    params = SamplingParams(temperature=0.7, max_new_tokens=32, stop_token_ids=(STOP,))
    engine.sync_weights(model)
    samples = engine.generate(asked, SEEDS, params)
    for step in range(2):
        adamw_step(model, optimizer, asked, samples)
        engine.sync_weights(model)
        samples = engine.generate(asked, SEEDS, params)
        difference = largest_difference(model, asked, samples, 0.7)
        print(f"step {step + 1}: largest difference {difference:.2e} nats")
        assert difference < AGREEMENT
        with adapter_disabled(model):
            assert largest_difference(model, asked, samples, 0.7) > 0.05, (
                "the adapter must be seen in the samples"
            )


def test_an_engine_leaves_nothing_and_another_can_follow(start):
    model = random_qwen(tied=True)
    asked = prompts(LENGTHS)
    params = SamplingParams(temperature=1.0, max_new_tokens=8)
    children = {p.pid for p in psutil.Process().children(recursive=True)}
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("VLLM_")
    }
    threads = torch.set_num_threads, torch.get_num_threads(), os.sched_getaffinity(0)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = start(model)
    first.sync_weights(model)
    expected = first.generate(asked, SEEDS, params)
    first.close()
    first.close()
    assert (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    ) == states
    assert {n: v for n, v in os.environ.items() if not n.startswith("VLLM_")} == environment
    assert (torch.set_num_threads, torch.get_num_threads(), os.sched_getaffinity(0)) == threads
    assert not torch.distributed.is_initialized()
    assert {p.pid for p in psutil.Process().children(recursive=True)} == children
    second = start(model)
    second.sync_weights(model)
    assert second.generate(asked, SEEDS, params) == expected


def test_the_next_run_reuses_an_engine_of_its_setup_and_checks_it(tmp_path):
    first = random_qwen(tied=True)
    second = random_qwen(tied=True, seed=1)
    asked = prompts(LENGTHS)
    params = SamplingParams(temperature=1.0, max_new_tokens=8)
    run = EngineContext(tuple(asked[0]), tmp_path / "vllm.log", shares_process=True)
    setup = EngineSetup(saved_config(tmp_path / "model", first), 256)
    engine = get_engine(first, setup, run)
    engine.sync_weights(first)
    engine.close()
    assert engine.llm is not None
    with pytest.raises(AssertionError, match=r"sync_weights\(\)"):
        engine.generate(asked, SEEDS, params)
    again = get_engine(second, setup, run)
    assert again is engine
    again.sync_weights(second)
    assert set(again.metrics()) == {"rollout/sync_difference"}
    assert again.metrics() == {}
    assert largest_difference(second, asked, again.generate(asked, SEEDS, params), 1.0) < AGREEMENT
    again.close()
    other = get_engine(second, dataclasses.replace(setup, max_model_len=128), EngineContext())
    assert other is not engine
    assert engine.llm is None
    assert "Starting to load model" in (tmp_path / "vllm.log").read_text()
    other.close()
    assert other.llm is None


def test_too_little_memory_names_the_knobs_and_leaves_a_clean_process(start):
    model = random_qwen(tied=True)
    with refused("engine-memory", EngineError) as caught:
        start(model, kv_cache_mb=1, max_model_len=1024)
    assert "gpu_memory_utilization" in caught.value.hint and "max_model_len" in caught.value.hint
    assert not torch.distributed.is_initialized()
    start(model).sync_weights(model)


def test_dual_chunk_attention_is_replaced_by_the_policys(start):
    model = random_qwen(tied=True)
    model.config.dual_chunk_attention_config = {
        "chunk_size": 128,
        "local_size": 32,
        "original_max_position_embeddings": 160,
    }
    engine = start(model)
    engine.sync_weights(model)
    asked = prompts(LENGTHS)
    params = SamplingParams(temperature=0.7, max_new_tokens=16, stop_token_ids=(STOP,))
    samples = engine.generate(asked, SEEDS, params)
    assert largest_difference(model, asked, samples, 0.7) < AGREEMENT


def test_a_synchronized_engine_samples_as_if_it_had_sampled_nothing(tmp_path):
    """In bfloat16 a cached prefix may round otherwise than a computed one; new weights empty the
    cache.
    """
    model = random_qwen(tied=True).to(torch.bfloat16)
    engine = VllmEngine(model, EngineSetup(saved_config(tmp_path, model), 256, "bfloat16"))
    asked = prompts((100, 70), seed=5)
    params = SamplingParams(temperature=1.0, max_new_tokens=24)
    seeds = [[1, 2], [3, 4]]
    engine.sync_weights(model)
    cold = engine.generate(asked, seeds, params)
    engine.generate(prompts((100, 130), seed=6), seeds, params)  # an evaluation
    engine.sync_weights(model)
    assert engine.generate(asked, seeds, params) == cold
    engine.close()
