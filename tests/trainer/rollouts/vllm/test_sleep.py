"""Sleeping and waking against an engine that only records: on a CPU, vLLM cannot sleep."""

import gc
from types import SimpleNamespace

import pytest
import torch

from loptune.errors import EngineError
from tests.conftest import random_model
from tests.refusals import refused
from trainer.rollouts.engine import EngineContext
from trainer.rollouts.vllm import engine as vllm
from trainer.rollouts.vllm.setup import EngineSetup

GPU = torch.device("cuda", 0)


class FakeLlm:
    def __init__(self):
        self.calls = []
        self.llm_engine = SimpleNamespace(
            engine_core=SimpleNamespace(shutdown=lambda: self.calls.append(("end",)))
        )
        self.room = True

    def sleep(self, level):
        self.calls.append(("sleep", level))

    def wake_up(self, tags):
        if not self.room:
            raise RuntimeError("CUDA Error: out of memory at csrc/cumem_allocator.cpp:139")
        self.calls.append(("wake", *tags))

    def collective_rpc(self, method, kwargs=None):
        self.calls.append((method if isinstance(method, str) else method.__name__,))

    def reset_prefix_cache(self):
        return True


@pytest.fixture
def engine(monkeypatch):
    """An engine as on a GPU, of a run that may be followed by another."""
    monkeypatch.setattr(vllm, "vllm_installed", lambda: True)
    monkeypatch.setattr(vllm.VllmEngine, "_start", lambda self, options: FakeLlm())
    monkeypatch.setattr(vllm, "check_synced_weights", lambda *_: 0.04)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    engine = vllm.VllmEngine(random_model(), EngineSetup("unused", 64))
    engine.sleep_level = 2
    return engine


def test_a_synchronization_wakes_the_weights_alone(engine):
    engine.sync_weights(random_model())
    assert engine.metrics() == {"rollout/sync_difference": 0.04}
    engine.llm.calls.clear()
    engine.sleep()
    engine.sleep()
    engine.sync_weights(random_model())
    engine.wake()
    engine.wake()
    expected = [
        ("sleep", 2),
        ("wake", "weights"),
        ("_prepare_worker",),
        ("reload_weights",),
        ("_repack_worker",),
        ("wake", "kv_cache"),
    ]
    assert engine.llm.calls == expected
    assert engine.metrics() == {}


def test_no_collection_of_garbage_goes_through_the_heap_meanwhile(engine):
    frozen = []
    record = engine.llm.calls.append
    engine.llm.calls = SimpleNamespace(
        append=lambda call: frozen.append((call[0], gc.get_freeze_count() > 0)) or record(call)
    )
    engine.sleep()
    engine.wake()
    assert frozen == [("sleep", True), ("wake", True)]
    assert gc.get_freeze_count() == 0


def test_an_engine_that_sleeps_is_woken_before_it_ends(engine):
    llm = engine.llm
    engine.sleep()
    engine.close()
    assert llm.calls == [("sleep", 2), ("wake", "weights", "kv_cache"), ("end",)]


def test_an_engine_half_awake_wakes_the_other_half_before_it_ends(engine):
    llm = engine.llm
    engine.sleep()
    engine.sync_weights(random_model())
    engine.sleep()
    engine._wake("weights")
    llm.calls.clear()
    engine.close()
    assert llm.calls == [("wake", "kv_cache"), ("end",)]


def test_an_engine_ends_where_there_is_no_room_to_wake_it(engine):
    llm = engine.llm
    engine.sleep()
    llm.room = False
    engine.close()
    assert llm.calls[-1] == ("end",)


def test_missing_memory_at_waking_names_the_knobs(engine):
    engine.sleep()
    engine.llm.room = False
    with refused("engine-memory", EngineError) as failed:
        engine.sync_weights(random_model())
    assert failed.value.where == "rollout.vllm.gpu_memory_utilization"
    assert "optim.tokens_per_microbatch" in failed.value.hint


def test_a_cache_that_cannot_be_forgotten_is_an_error(engine):
    engine.llm.reset_prefix_cache = lambda: False
    with refused("engine-failed", EngineError, names=("prefix cache",)):
        engine.sync_weights(random_model())


def test_a_reused_engine_sleeps_until_the_next_runs_first_sync(engine):
    engine.start_run(EngineContext(shares_process=True))
    engine.sync_weights(random_model())
    llm = engine.llm
    engine.close()
    llm.calls.clear()
    assert vllm.get_engine(random_model(), EngineSetup("unused", 64), EngineContext()) is engine
    engine.sync_weights(random_model())
    assert llm.calls == [
        ("wake", "weights"),
        ("_prepare_worker",),
        ("reload_weights",),
        ("_repack_worker",),
        ("wake", "kv_cache"),
    ]
    engine.close()
    assert llm.calls[-1] == ("end",)
