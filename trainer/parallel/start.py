"""The ranks of a run, as its configuration and its launcher say."""

import importlib.util
import os

from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError, MissingError
from trainer.parallel.device import local_device
from trainer.parallel.ranks import DistributedParallel, Parallel


def make_parallel(config: TrainConfig) -> Parallel:
    """Return the rank this process is, as RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
    say.

    torchrun and `accelerate launch` set them; ranks that are started otherwise need them before
    torch is imported. Collective: all ranks call it with the same configuration. May be called
    again for the next run of a process.

    Raises:
        ConfigError: several processes without a strategy, or ranks with different configurations.
        MissingError: DeepSpeed is asked for where it is not installed; or as `local_device` does.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    strategy = config.parallel.strategy
    if strategy == "none" and world_size > 1:
        raise ConfigError(
            f"{world_size} processes were started, but parallel.strategy is none",
            "parallel.strategy",
            "add parallel.strategy=ddp or parallel.strategy=deepspeed, or start one process",
        )
    if strategy == "deepspeed":
        if importlib.util.find_spec("deepspeed") is None:
            raise MissingError(
                "DeepSpeed is not installed",
                "parallel.strategy",
                "pip install deepspeed, or parallel.strategy=ddp",
            )
        local_device(config.parallel.device)  # DeepSpeed chooses its device as it is imported
        from trainer.parallel.deepspeed import DeepSpeedParallel  # takes seconds to import

        return DeepSpeedParallel(config)
    if world_size > 1:
        return DistributedParallel(config)
    return Parallel(local_device(config.parallel.device))


def check_divisible(config: TrainConfig, world_size: int) -> None:
    """Check that every rank gets as many prompts of a step and completions of an optimizer step as
    the others.

    Raises:
        ConfigError: a number that the ranks do not divide.
    """
    for key, value in (
        ("rollout.prompts_per_step", config.rollout.prompts_per_step),
        ("optim.update_batch_size", config.optim.update_batch_size),
    ):
        if value % world_size:
            raise ConfigError(
                f"{key} {value} cannot be split over {world_size} ranks",
                key,
                f"make it a multiple of {world_size}",
            )
