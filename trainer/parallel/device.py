"""The device a rank computes on, and in which precision."""

import gc
import os
from pathlib import Path
from typing import Literal

import psutil
import torch

from trainer.config.model import ModelConfig
from trainer.errors import MissingError
from trainer.parallel.gpus import driver_version, visible_gpus
from trainer.planning.memory import Device

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
ON_CPU = "parallel.device=cpu to compute on the CPU all the same"


def local_device(wanted: Literal["auto", "cuda", "cpu"] = "auto") -> torch.device:
    """Return the GPU of this rank, or the CPU.

    Args:
        wanted: ``auto`` is a GPU where there is one; ``cuda`` insists on it; ``cpu`` leaves GPUs
            alone.

    Raises:
        MissingError: there is no GPU and one is insisted on; there is one and torch cannot use it,
            so that a run made for it would crawl along on the CPU; or this node has more ranks than
            GPUs.
    """
    if wanted == "cpu":
        return _use(torch.device("cpu"))
    if torch.cuda.is_available():
        return _use(torch.device("cuda", _local_index()))
    if visible_gpus():
        driver = driver_version() or "not found"
        raise MissingError(
            f"torch {torch.__version__} cannot use the GPU of this machine or of "
            f"CUDA_VISIBLE_DEVICES: {_reason()}",
            f"NVIDIA driver {driver}, torch built for CUDA "
            f"{torch.version.cuda or '(none: a build for CPUs)'}",
            f"{_remedy()}; or {ON_CPU}",
        )
    if wanted == "cuda":
        raise MissingError(
            "this configuration is for GPUs, and there is none", "parallel.device", f"add {ON_CPU}"
        )
    return _use(torch.device("cpu"))


def compute_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the dtype in which a model is computed; ``auto`` is bfloat16 on GPUs that have it,
    else float32.
    """
    if config.dtype == "auto":
        low = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if low else torch.float32
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def free_memory() -> None:
    """Free what nothing refers to any more, a run's models among it: they are in reference cycles.

    What vLLM froze at its start is collected, too: it freezes all there is in the process.
    """
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def memory_of(device: torch.device) -> Device:
    """Describe a rank's device to the estimate of its memory."""
    if device.type == "cuda":
        return Device(True, torch.cuda.get_device_properties(device).total_memory)
    return Device(False, psutil.virtual_memory().total)


def peak_bytes(device: torch.device) -> int:
    """Return what a rank has taken at most: of a GPU all that is in use, torch's cache and other
    libraries included.

    On a CPU it is the largest resident set of this process.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    [line] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) * 1024


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` or ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def _remedy() -> str:
    if torch.version.cuda is None:
        return "`make install-gpu` installs torch for GPUs"
    return (
        "compare the driver with docs/guides/gpu.md, and CUDA_VISIBLE_DEVICES with the GPUs "
        "that `nvidia-smi` lists"
    )


def _use(device: torch.device) -> torch.device:
    if device.type == "cuda":
        if not any(name in os.environ for name in _ALLOCATOR):
            # Microbatches differ in length: without it every new length leaves a hole that no later
            # one fits. vLLM turns it off around the memory that sleeps; some of its versions look
            # for the older name only.
            os.environ.update(dict.fromkeys(_ALLOCATOR, "expandable_segments:True"))
        # cuDNN, which torch prefers from Hopper on, builds a plan for every new shape, and every
        # microbatch has one.
        torch.backends.cuda.enable_cudnn_sdp(False)
    # DeepSpeed looks for its device when it is imported, and warns where it finds none.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    return device


def _local_index() -> int:
    """Return which of the visible GPUs is this rank's.

    Where a scheduler shows every rank its own GPU alone (``srun --gpus-per-task=1``), that is
    number 0 whatever LOCAL_RANK says; accelerate and DeepSpeed take the number from there.
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
        )
    os.environ["LOCAL_RANK"] = "0"
    return 0


def _reason() -> str:
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return "it does not say why"
