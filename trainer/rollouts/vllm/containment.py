"""Keeping what vLLM does to its process away from the trainer that shares it."""

import gc
import logging
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

# Who sets VLLM_LOGGING_LEVEL gets vLLM's own messages where vLLM sends them.
_OWN_LOGGING = "VLLM_LOGGING_LEVEL"
# nvcc compiles FlashInfer's sampler as an engine starts, which fails without nvcc and with that of
# another CUDA.
NO_FLASHINFER_SAMPLER = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}


def send_log_to(path: Path | None) -> None:
    """Write vLLM's messages to a file, or drop them: between a run's own lines they would
    be noise.
    """
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
def random_state_kept() -> Iterator[None]:
    """Restore the global random states that building an engine and sampling from it change."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextmanager
def process_state_kept(local_rank: int) -> Iterator[None]:
    """Restore what starting vLLM changes besides: the environment and PyTorch's threads.

    ``LD_PRELOAD`` would reach every process started later, ``LOCAL_WORLD_SIZE`` whatever asks the
    launcher how many ranks there are. Variables of vLLM's own stay: it reads them again later.
    """
    before = dict(os.environ)
    set_num_threads = torch.set_num_threads
    threads = torch.get_num_threads()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    for name, value in NO_FLASHINFER_SAMPLER.items():
        os.environ.setdefault(name, value)
    # weights are handed over as tensors, so in this process
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["LOCAL_RANK"] = str(local_rank)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")
            yield
    finally:
        torch.set_num_threads = set_num_threads
        set_num_threads(threads)
        for name in [
            name for name in os.environ if name not in before and not name.startswith("VLLM_")
        ]:
            del os.environ[name]
        os.environ.update(before)


def keep_off_shared_memory(device: torch.device) -> None:
    """Let ranks on CPUs that share a model exchange over their process group.

    Where a CPU has AVX-512, vLLM lets them share memory, under one name for all runs of a machine:
    the ranks of a second run, or the first ones after a killed run, do not start ("create shm in
    SHMManager failed. errno: 17").
    """
    if device.type == "cpu":
        module = import_module("vllm.distributed.device_communicators.cpu_communicator")
        module.CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False


def eager_on_cpu(device: torch.device) -> AbstractContextManager[Any]:
    """Run, on a CPU, what vLLM marks for compilation as it is: compiling takes longer than most
    runs there.
    """
    return torch.compiler.set_stance("force_eager") if device.type == "cpu" else nullcontext()


@contextmanager
def heap_frozen() -> Iterator[None]:
    """Keep all objects that exist out of the garbage collections that vLLM asks for as it sleeps
    and wakes: of the 1.3 million of a trial one took half a second on an H200, and without them
    0.03 s.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def default_group_kept() -> Iterator[None]:
    """Keep vLLM's shutdown from destroying the default process group, which belongs to the
    trainer.
    """
    destroy = dist.destroy_process_group

    def destroy_subgroup(group: dist.ProcessGroup | None = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            destroy(group)

    dist.destroy_process_group = destroy_subgroup
    try:
        yield
    finally:
        dist.destroy_process_group = destroy
