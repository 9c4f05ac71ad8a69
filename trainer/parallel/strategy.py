"""Selection of the parallel strategy."""

import os

from loptune.errors import ConfigError
from loptune.extras import require
from trainer.config.schema import TrainConfig
from trainer.parallel.device import local_device
from trainer.parallel.ranks import DistributedParallel, Parallel


def make_parallel(config: TrainConfig) -> Parallel:
    """Create the `Parallel` object of this process from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR
    and MASTER_PORT.

    torchrun and `accelerate launch` set these variables; other launchers must set them before torch
    is imported. Collective: all ranks must call it with the same configuration. It may be called
    again for another run in the same process.

    Raises:
        ConfigError: several processes but no strategy, or configurations that differ between ranks.
        MissingError: DeepSpeed is not installed; or as in `local_device`.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    strategy = config.parallel.strategy
    if strategy == "none" and world_size > 1:
        raise ConfigError(
            f"{world_size} processes were started, but parallel.strategy is none",
            "parallel.strategy",
            "add parallel.strategy=ddp or parallel.strategy=deepspeed, or start one process",
            code="ranks-without-strategy",
        )
    if strategy == "deepspeed":
        require("deepspeed", "parallel.strategy")
        # before importing DeepSpeed, which selects its device on import
        local_device(config.parallel.device)
        from trainer.parallel.deepspeed import DeepSpeedParallel  # takes seconds to import

        return DeepSpeedParallel(config)
    if world_size > 1:
        return DistributedParallel(config)
    return Parallel(local_device(config.parallel.device))


def check_divisible(config: TrainConfig, world_size: int) -> None:
    """Check that prompts per step and update batch size are divisible by the number of ranks.

    Raises:
        ConfigError: a value is not divisible.
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
                code="not-divisible",
            )
