"""Device and dtype selection of a rank."""

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psutil
import torch

from loptune.errors import MissingError, first_line
from trainer.config.model import ModelConfig
from trainer.parallel.gpus import driver_version, visible_gpus
from trainer.planning.memory import Device

_log = logging.getLogger(__name__)

_DEEPSPEED_DEVICE = "DS_ACCELERATOR"
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# CUDA's major version -> oldest NVIDIA driver (CUDA release notes, minor version compatibility)
_DRIVERS = {"12": "525", "13": "580"}
CPU_HINT = "parallel.device=cpu to run on the CPU"


def local_device(wanted: Literal["auto", "cuda", "cpu"] = "auto") -> torch.device:
    """Return this rank's device.

    Args:
        wanted: ``auto`` uses a GPU if available; ``cuda`` requires one; ``cpu`` ignores GPUs.

    Raises:
        MissingError: a GPU is required but missing; torch cannot use the existing GPU (falling back
            to the CPU would be too slow); or this rank sees several GPUs, but fewer than the node
            has ranks.
    """
    if wanted == "cpu":
        return _use(torch.device("cpu"))
    if torch.cuda.is_available():
        return _use(torch.device("cuda", _local_index()))
    if visible_gpus():
        driver = driver_version()
        if driver is None and "CUDA_VISIBLE_DEVICES" in os.environ:
            raise MissingError(
                "CUDA_VISIBLE_DEVICES lists a GPU, but this machine has no NVIDIA driver",
                f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}",
                f"unset CUDA_VISIBLE_DEVICES, or add {CPU_HINT}",
                code="no-driver",
            )
        raise MissingError(
            f"torch {torch.__version__} cannot use the GPU of this machine or of "
            f"CUDA_VISIBLE_DEVICES: {_reason()}",
            f"NVIDIA driver {driver or 'not found'}, torch built for CUDA "
            f"{torch.version.cuda or '(none: a build for CPUs)'}",
            f"{_remedy()}; or add {CPU_HINT}",
            code="gpu-unusable",
        )
    if wanted == "cuda":
        raise MissingError(
            "this configuration needs a GPU, but none is visible",
            "parallel.device",
            f"add {CPU_HINT}",
            code="no-gpu",
        )
    return _use(torch.device("cpu"))


def compute_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the compute dtype. ``auto`` is bfloat16 on GPUs that support it, else float32."""
    if config.dtype == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bf16 else torch.float32
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def free_memory() -> None:
    """Free unreferenced objects, such as the models of a finished run, which are in reference
    cycles.

    Unfreezes the heap first, because vLLM freezes all existing objects when it starts.
    """
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def describe_device(device: torch.device) -> Device:
    """Return a description of the device for the memory estimate."""
    if device.type == "cuda":
        return Device(True, torch.cuda.get_device_properties(device).total_memory)
    return Device(False, psutil.virtual_memory().total)


def memory_in_use(device: torch.device) -> int:
    """Return a rank's memory use [bytes].

    On a GPU, this is all of the GPU's memory in use, including torch's cache, other libraries and
    other processes. On a CPU, it is the peak resident set size of this process.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    [line] = [
        line
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) * 1024


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` or ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def _remedy() -> str:
    if torch.version.cuda is None:
        return "run `make install-gpu` to install torch with CUDA"
    needed = _DRIVERS.get(torch.version.cuda.partition(".")[0])
    driver = f"install NVIDIA driver {needed} or newer" if needed else "check the driver version"
    return (
        f"CUDA {torch.version.cuda}: {driver} (docs/guides/gpu.md), and check CUDA_VISIBLE_DEVICES "
        "against `nvidia-smi -L`"
    )


def _use(device: torch.device) -> torch.device:
    """Apply the settings that torch and DeepSpeed need for a device, and return the device."""
    if device.type == "cuda":
        if not any(name in os.environ for name in _ALLOCATOR):
            # Microbatches vary in length, which fragments the default allocator. vLLM disables this
            # for its sleeping memory; some vLLM versions only read the older variable name.
            os.environ.update(dict.fromkeys(_ALLOCATOR, "expandable_segments:True"))
        # On Hopper and newer GPUs, torch prefers cuDNN attention. It builds a plan for every new
        # shape, and every microbatch has a new shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
    # DeepSpeed probes for a device on import and warns if it finds none.
    os.environ.setdefault(_DEEPSPEED_DEVICE, device.type)
    return device


@contextmanager
def deepspeed_on_cpu() -> Iterator[None]:
    """Make DeepSpeed use the CPU if the block imports it, instead of warning that it finds no other
    device. Processes that start after the block look for a device again.
    """
    before = os.environ.get(_DEEPSPEED_DEVICE)
    os.environ[_DEEPSPEED_DEVICE] = "cpu"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_DEEPSPEED_DEVICE]
        else:
            os.environ[_DEEPSPEED_DEVICE] = before


def _local_index() -> int:
    """Return the index of this rank's GPU among the visible ones.

    If the scheduler shows each rank only its own GPU (``srun --gpus-per-task=1``), the index is 0.
    LOCAL_RANK is then reset to 0, because accelerate and DeepSpeed read it.

    Raises:
        MissingError: this rank sees several GPUs, but LOCAL_RANK is not the index of any of them.
    """
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count()
    if rank < count:
        return rank
    if count > 1:
        raise MissingError(
            f"the rank with LOCAL_RANK {rank} sees {count} GPUs",
            "CUDA_VISIBLE_DEVICES",
            "start one rank per GPU",
            code="rank-without-gpu",
        )
    _log.warning(
        "each rank sees only its own GPU, so NCCL may be slow or fail: make all GPUs of the node "
        "visible to every rank (Slurm: --gpus-per-node with --gpu-bind=none, "
        "LOCAL_RANK=SLURM_LOCALID)"
    )
    os.environ["LOCAL_RANK"] = "0"
    return 0


def _reason() -> str:
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return first_line(error)
    return "no reason given"
