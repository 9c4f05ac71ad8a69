"""What one rank does in tests of the collectives themselves."""

import os
from pathlib import Path
from typing import Any

import torch

from loptune.errors import ConfigError
from tests.invariants.ranks import be_a_rank
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.parallel.strategy import make_parallel


def refusal(config: TrainConfig) -> str:
    try:
        make_parallel(config)
    except ConfigError as error:
        return str(error)
    return ""


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    rank = int(os.environ["RANK"])
    ddp = apply_overrides(TrainConfig(), {"parallel.strategy": "ddp"})
    results = {
        "without a strategy": refusal(TrainConfig()),
        "other seeds": refusal(apply_overrides(ddp, {"seed": rank})),
        "other sets": refusal(
            apply_overrides(ddp, {"evaluation.sets": {f"dev{rank}": {"size": 5}}})
        ),
    }
    parallel = make_parallel(ddp)
    return results | {
        "rank": [parallel.rank, parallel.world_size, parallel.is_main],
        "dealt": parallel.gather([f"{rank}{k}" for k in "abc"[: 3 - rank]]),
        "sum": parallel.sum(torch.tensor([1.0, rank], dtype=torch.float64)).tolist(),
        "any": [parallel.any(rank == 1), parallel.any(False)],
    }


if __name__ == "__main__":
    be_a_rank(work)
