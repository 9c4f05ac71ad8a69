"""What vLLM does to its process, done by hand here; needs no vLLM."""

import logging
import os
import random
import sys
import warnings
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses
from torch.nn.functional import linear

from trainer.rollouts.vllm.isolation import (
    eager_on_cpu,
    keep_default_group,
    one_thread_beside_gpu,
    preserve_environment,
    preserve_random_state,
    preserve_threads,
    redirect_log,
    torchs_linear,
    vllm_settings,
)


def test_random_numbers_go_on_as_if_there_had_been_no_engine():
    def draw():
        return random.random(), float(np.random.random()), float(torch.rand(()))

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = draw()
    random.setstate(states[0]), np.random.set_state(states[1]), torch.set_rng_state(states[2])
    with pytest.raises(RuntimeError), preserve_random_state():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        raise RuntimeError
    assert draw() == expected


def test_the_environment_is_as_before_but_for_what_is_vllms_own(monkeypatch):
    for name in (
        "VLLM_NO_USAGE_STATS",
        "VLLM_USE_FLASHINFER_SAMPLER",
        "VLLM_MADE",
        "LD_PRELOAD",
        "LOCAL_RANK",
    ):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with (
        pytest.raises(RuntimeError),
        preserve_environment(),
        vllm_settings(local_rank=3, tensor_parallel=1),
    ):
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        assert (os.environ["LOCAL_RANK"], os.environ["VLLM_NO_USAGE_STATS"]) == ("3", "1")
        assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
        os.environ |= {"LD_PRELOAD": "libomp.so", "VLLM_MADE": "x", "LOCAL_WORLD_SIZE": "1"}
        raise RuntimeError
    assert "LD_PRELOAD" not in os.environ and "LOCAL_RANK" not in os.environ
    assert os.environ["LOCAL_WORLD_SIZE"] == "4"
    assert os.environ["VLLM_MADE"] == "x"


def test_the_threads_are_as_before_although_vllm_replaces_the_function_that_sets_them(monkeypatch):
    set_num_threads = torch.set_num_threads
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "set_num_threads", set_num_threads)
    with pytest.raises(RuntimeError), preserve_threads():
        torch.set_num_threads(threads + 1)
        torch.set_num_threads = None
        raise RuntimeError
    assert torch.set_num_threads is set_num_threads
    assert torch.get_num_threads() == threads


OTHER_ALL_REDUCES = ("VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_ALLREDUCE_USE_SYMM_MEM")


def test_tensor_parallel_engines_use_no_all_reduce_that_is_made_in_the_first_forward(monkeypatch):
    for name in (*OTHER_ALL_REDUCES, "VLLM_USE_FLASHINFER_SAMPLER", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
        monkeypatch.delenv(name)
    with preserve_environment(), vllm_settings(local_rank=0, tensor_parallel=1):
        assert not set(OTHER_ALL_REDUCES) & os.environ.keys()
    monkeypatch.setenv(OTHER_ALL_REDUCES[1], "1")  # the user's choice
    with preserve_environment(), vllm_settings(local_rank=0, tensor_parallel=2):
        assert [os.environ[name] for name in OTHER_ALL_REDUCES] == ["0", "1"]


def test_vllm_calls_torchs_linear_although_stage_3_replaced_it(monkeypatch):
    def replacement(*arguments):
        raise AssertionError

    monkeypatch.setattr(InsertPostInitMethodToModuleSubClasses, "linear_bk", linear, raising=False)
    monkeypatch.setattr(torch.nn.functional, "linear", replacement)
    with torchs_linear():
        assert torch.nn.functional.linear is linear
    assert torch.nn.functional.linear is replacement


def test_warnings_about_the_future_of_vllm_alone_are_dropped():
    def warn(module):
        warnings.warn_explicit("later", FutureWarning, "file.py", 1, module=module, registry={})

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with preserve_environment(), vllm_settings(local_rank=0, tensor_parallel=1):
            warn("vllm.config")
            warn("torch.nn")
    assert len(caught) == 1


@pytest.fixture
def vllm_state(monkeypatch):
    """A module that stands for vLLM's of process groups, and what is destroyed."""
    destroyed = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda group=None: destroyed.append(group))

    def destroy_distributed_environment():
        dist.destroy_process_group("a group of vLLM's")
        dist.destroy_process_group()

    state = ModuleType("vllm.distributed.parallel_state")
    state.destroy_distributed_environment = destroy_distributed_environment
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", state)
    return state, destroyed


def trainers_group(monkeypatch, group):
    monkeypatch.setattr(dist, "is_initialized", lambda: group is not None)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=group))


def test_the_trainers_process_group_outlives_an_engine_and_its_finalizer(monkeypatch, vllm_state):
    state, destroyed = vllm_state
    trainers_group(monkeypatch, "the trainer's")
    before = dist.destroy_process_group
    keep_default_group()
    keep_default_group()  # of a second engine
    state.destroy_distributed_environment()  # whoever calls it
    assert destroyed == ["a group of vLLM's"]
    assert dist.destroy_process_group is before


def test_vllm_destroys_a_process_group_of_its_own(monkeypatch, vllm_state):
    state, destroyed = vllm_state
    trainers_group(monkeypatch, None)
    keep_default_group()
    trainers_group(monkeypatch, "vLLM's")
    state.destroy_distributed_environment()
    assert destroyed == ["a group of vLLM's", None]


def test_vllm_samples_with_one_thread_beside_a_gpu():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError), one_thread_beside_gpu(torch.device("cuda")):
            assert torch.get_num_threads() == 1
            raise RuntimeError
        assert torch.get_num_threads() == 2
        with one_thread_beside_gpu(torch.device("cpu")):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_nothing_is_compiled_on_a_cpu():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    double = torch.compile(lambda x: x * 2, backend=backend)
    with eager_on_cpu(torch.device("cpu")):
        assert double(torch.ones(1)).item() == 2
        assert compiled == []
    with eager_on_cpu(torch.device("cuda")):
        assert double(torch.ones(1)).item() == 2
    assert len(compiled) == 1


@pytest.fixture
def vllm_logger(monkeypatch):
    logger = logging.getLogger("vllm")
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "1")
    kept = logger.handlers[:], logger.level, logger.propagate
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers[:], logger.level, logger.propagate = kept


def test_messages_go_to_the_file_of_the_run_that_is_sampled_for(vllm_logger, tmp_path, caplog):
    for name in ("one", "two"):
        redirect_log(tmp_path / f"{name}.log")
        logging.getLogger("vllm.core").info("says %s", name)
    assert (tmp_path / "one.log").read_text().endswith("INFO vllm.core: says one\n")
    assert (tmp_path / "two.log").read_text().endswith("INFO vllm.core: says two\n")
    assert len((tmp_path / "one.log").read_text().splitlines()) == 1
    assert os.environ["VLLM_CONFIGURE_LOGGING"] == "0"
    redirect_log(None)
    vllm_logger.error("lost")
    assert len((tmp_path / "two.log").read_text().splitlines()) == 1
    assert caplog.messages == []


def test_who_sets_the_level_gets_the_messages_where_vllm_sends_them(
    vllm_logger, tmp_path, monkeypatch
):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    redirect_log(tmp_path / "vllm.log")
    vllm_logger.error("seen")
    assert not (tmp_path / "vllm.log").exists()
    assert os.environ["VLLM_CONFIGURE_LOGGING"] == "1"
