"""What one rank does in tests of the collectives themselves."""

import json
import os
import sys
from pathlib import Path

import torch

from trainer.config.schema import TrainConfig, apply_overrides
from trainer.errors import ConfigError
from trainer.parallel.ranks import end_rank, leave_ranks
from trainer.parallel.start import make_parallel


def refusal(config: TrainConfig) -> str:
    try:
        make_parallel(config)
    except ConfigError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    ddp = apply_overrides(TrainConfig(), {"parallel.strategy": "ddp"})
    results = {
        "without a strategy": refusal(TrainConfig()),
        "other seeds": refusal(apply_overrides(ddp, {"seed": rank})),
        "other sets": refusal(apply_overrides(ddp, {"evaluation.sets": {f"dev{rank}": {"size": 5}}})),
    }
    parallel = make_parallel(ddp)
    results |= {
        "rank": [parallel.rank, parallel.world_size, parallel.is_main],
        "dealt": parallel.gather([f"{rank}{k}" for k in "abc"[: 3 - rank]]),
        "sum": parallel.sum(torch.tensor([1.0, rank], dtype=torch.float64)).tolist(),
        "any": [parallel.any(rank == 1), parallel.any(False)],
    }
    leave_ranks()
    (folder / f"rank-{rank}.json").write_text(json.dumps(results))
    end_rank(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
