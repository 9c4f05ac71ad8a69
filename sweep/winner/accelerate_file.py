"""The file with which `accelerate launch` starts as many ranks as a trial has workers."""

from pathlib import Path
from typing import Any

import yaml

from trainer.config.schema import TrainConfig

_DEVICES = {"none": ("none", "none"), "optimizer": ("cpu", "none"), "parameters": ("cpu", "cpu")}


def accelerate_config(config: TrainConfig, workers: int) -> dict[str, Any]:
    """What `accelerate config` would write for one machine.

    The trainer takes precision and ZeRO settings from its own file; they are repeated here for whoever reads it.
    """
    parallel = config.parallel
    # MULTI_GPU starts the ranks through torchrun, without GPUs too; MULTI_CPU starts a single one.
    kind = {"none": "NO", "ddp": "MULTI_GPU", "deepspeed": "DEEPSPEED"}[parallel.strategy]
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": workers,
        "main_process_port": 0,  # any free one
        "mixed_precision": "bf16" if config.model.dtype == "bfloat16" else "no",
        "use_cpu": False,
        "debug": False,
    }
    if parallel.strategy == "deepspeed":
        optimizer, parameters = _DEVICES[parallel.offload]
        settings["deepspeed_config"] = {
            "zero_stage": parallel.zero_stage,
            "offload_optimizer_device": optimizer,
            "offload_param_device": parameters,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": config.optim.max_grad_norm,
            "zero3_init_flag": parallel.zero_stage == 3,
        }
    return settings


def write_accelerate_config(config: TrainConfig, workers: int, run_file: Path) -> Path:
    """Write the file beside the run's and return its path."""
    path = run_file.with_name(f"{run_file.stem}-accelerate.yaml")
    path.write_text(yaml.safe_dump(accelerate_config(config, workers), sort_keys=False), encoding="utf-8")
    return path
