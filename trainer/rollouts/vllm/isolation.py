"""Isolation of the trainer from vLLM's side effects in the same process."""

import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainer.parallel.gpus import GPU_FRACTION_VARIABLE

# if the user sets VLLM_LOGGING_LEVEL, vLLM's logging is left unchanged
_OWN_LOGGING = "VLLM_LOGGING_LEVEL"
# FlashInfer's sampler is compiled with nvcc at engine start, which fails without nvcc or with an
# nvcc of a different CUDA version
_NO_FLASHINFER_SAMPLER = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
# If nvcc is available, each tensor-parallel rank sets these all-reduces up inside its first forward
# pass. If that fails on one rank only, the ranks call different collectives and wait forever.
_NO_OTHER_ALL_REDUCE = {"VLLM_ALLREDUCE_USE_FLASHINFER": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}
_NEIGHBOR_ASSERTION = "Memory usage increased after sleeping"


def redirect_log(path: Path | None) -> None:
    """Redirect vLLM's log messages to a file, or discard them."""
    if _OWN_LOGGING in os.environ:
        return
    os.environ["VLLM_CONFIGURE_LOGGING"] = "0"
    logger = logging.getLogger("vllm")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(
        logging.NullHandler() if path is None else logging.FileHandler(path, delay=True)
    )
    logger.handlers[0].setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logger.setLevel(logging.INFO)
    logger.propagate = False


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Preserve the global random states of Python, numpy and torch."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def vllm_environment(tensor_parallel: int) -> dict[str, str]:
    """Return vLLM's variables for an engine with this number of ranks; variables that the user has
    set take precedence.
    """
    variables = dict(_NO_FLASHINFER_SAMPLER)
    if tensor_parallel > 1:
        variables |= _NO_OTHER_ALL_REDUCE
    return variables


@contextmanager
def preserve_environment() -> Iterator[None]:
    """Preserve the environment, except for vLLM's own ``VLLM_*`` variables that were not set
    before: vLLM reads them again later.

    Of the others that starting vLLM sets, ``LD_PRELOAD`` would affect every later child process,
    and ``LOCAL_WORLD_SIZE`` any code that reads the launcher's variables.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in [
            name for name in os.environ if name not in before and not name.startswith("VLLM_")
        ]:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def preserve_threads() -> Iterator[None]:
    """Preserve torch's number of CPU threads, and the function that sets it."""
    # vLLM's CPUWorker.init_device replaces torch.set_num_threads by a function that only warns.
    set_num_threads = torch.set_num_threads
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        set_num_threads(threads)


@contextmanager
def vllm_settings(local_rank: int, tensor_parallel: int) -> Iterator[None]:
    """Set the variables that vLLM reads when it starts, and ignore its warnings about the future.
    The variables stay set: use it within `preserve_environment`.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    for name, value in vllm_environment(tensor_parallel).items():
        os.environ.setdefault(name, value)
    # weights are passed as tensors, so the engine must run in this process
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["LOCAL_RANK"] = str(local_rank)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")
        yield


@contextmanager
def torchs_linear() -> Iterator[None]:
    """Let vLLM's layers call torch's own linear function, even if DeepSpeed's stage 3 has replaced
    it in this process.
    """
    zero = sys.modules.get("deepspeed.runtime.zero.partition_parameters")
    patched = getattr(zero, "InsertPostInitMethodToModuleSubClasses", None)
    original = getattr(patched, "linear_bk", None)
    replaced = torch.nn.functional.linear
    if original is None or original is replaced:
        yield
        return
    torch.nn.functional.linear = original
    try:
        yield
    finally:
        torch.nn.functional.linear = replaced


def disable_cpu_shared_memory(device: torch.device) -> None:
    """Make CPU tensor-parallel ranks communicate through their process group.

    With AVX-512, vLLM uses a shared-memory segment whose name is the same for all runs on a
    machine. A second run, or a run after a killed run, therefore fails to start ("create shm in
    SHMManager failed. errno: 17").
    """
    if device.type == "cpu":
        module = import_module("vllm.distributed.device_communicators.cpu_communicator")
        module.CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False


def tolerate_neighbors(device: torch.device) -> None:
    """Let vLLM go to sleep even if another trial on its GPU has allocated memory in the meantime.

    vLLM asserts that the device has more free memory afterwards (vLLM issue 45620). A neighbor that
    wakes up or trains violates this, although vLLM has already freed its memory. The error is
    caught inside the worker: if it were caught outside, vLLM's executor would not know that it is
    asleep, and would ignore the next call to wake up.
    """
    fraction = float(os.environ.get(GPU_FRACTION_VARIABLE, "1"))
    if device.type != "cuda" or fraction >= 1:
        return
    worker = import_module("vllm.v1.worker.gpu_worker").Worker
    sleep = worker.sleep
    # patched by an earlier engine in this process
    if getattr(sleep, "tolerates_neighbors", False):
        return

    @wraps(sleep)
    def sleep_beside_neighbors(self: Any, level: int = 1) -> None:
        try:
            sleep(self, level)
        except AssertionError as error:
            if _NEIGHBOR_ASSERTION not in str(error):
                raise

    sleep_beside_neighbors.tolerates_neighbors = True  # type: ignore[attr-defined]
    worker.sleep = sleep_beside_neighbors


def eager_on_cpu(device: torch.device) -> AbstractContextManager[Any]:
    """Disable torch.compile on a CPU, where compiling takes longer than most runs."""
    return torch.compiler.set_stance("force_eager") if device.type == "cpu" else nullcontext()


@contextmanager
def freeze_gc_heap() -> Iterator[None]:
    """Exclude existing objects from the garbage collections that vLLM triggers on sleep and wake.
    With a trial's 1.3 million objects a collection took 0.5 s on an H200, and 0.03 s without them.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def keep_default_group() -> None:
    """Keep vLLM from destroying the current default process group, which belongs to the trainer.
    vLLM destroys it together with an engine, and also in a finalizer. After a failed start, the
    finalizer runs later, when the engine's objects are collected.
    """
    state: Any = import_module("vllm.distributed.parallel_state")
    destroy = state.destroy_distributed_environment
    # patched by an earlier engine in this process
    destroy = getattr(destroy, "__wrapped__", destroy)
    kept = dist.group.WORLD if dist.is_initialized() else None

    @wraps(destroy)
    def destroy_others() -> None:
        is_kept = kept is not None and dist.is_initialized() and dist.group.WORLD is kept
        with _subgroups_only() if is_kept else nullcontext():
            destroy()

    state.destroy_distributed_environment = destroy_others


@contextmanager
def _subgroups_only() -> Iterator[None]:
    """Keep torch from destroying a default process group."""
    destroy = dist.destroy_process_group

    def destroy_subgroup(group: dist.ProcessGroup | None = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            destroy(group)

    dist.destroy_process_group = destroy_subgroup
    try:
        yield
    finally:
        dist.destroy_process_group = destroy


@contextmanager
def one_thread_beside_gpu(device: torch.device) -> Iterator[None]:
    """Let torch use one CPU thread while vLLM samples on a GPU.

    After a multithreaded operation, OpenMP's threads spin and take time from the loop that launches
    the GPU kernels. vLLM sets one thread for the whole process, and `preserve_threads` gives the
    trainer its threads back.
    """
    threads = torch.get_num_threads()
    if device.type == "cuda":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
