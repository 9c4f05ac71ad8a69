"""The memory of a run, below its configuration in ``trainer presets NAME``."""

import psutil

from trainer.config.schema import TrainConfig
from trainer.parallel.gpus import gpu_bytes, visible_gpus
from trainer.policy.memory import GPU_BYTES, Device, footprint

USUAL_RANKS = 4  # of a run with DeepSpeed: the presets were made for four GPUs


def memory_comment(config: TrainConfig, ranks: int | None, gpu_gb: float | None) -> str:
    """Lines of a YAML comment.

    Args:
        config: of the run.
        ranks: of the run; `USUAL_RANKS` with DeepSpeed, else one if None.
        gpu_gb: memory of one GPU; that of this machine's, else 80 GB if None.
    """
    ranks = ranks or (USUAL_RANKS if config.parallel.strategy == "deepspeed" else 1)
    found = footprint(config, ranks, _device(config, gpu_gb))
    if found is None:
        return f"# memory: unknown, for there is no config.json of {config.model.name_or_path} on this machine\n"
    return "".join(f"# {head}{line}\n" for head, line in zip(("memory ", "  ", "  "), found.lines(), strict=True))


def _device(config: TrainConfig, gpu_gb: float | None) -> Device:
    wanted = config.parallel.device
    if gpu_gb or wanted == "cuda" or (wanted == "auto" and visible_gpus()):
        return Device(True, round(gpu_gb * 1e9) if gpu_gb else gpu_bytes() or GPU_BYTES)
    return Device(False, psutil.virtual_memory().total)
