"""What one rank does in the test of every update rule on two ranks: one training step from the same weights."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.invariants.rules import RULES, rewards_of
from tests.invariants.update_job import Updates, update_config
from tests.rounding import largest_gradient
from trainer.config.schema import TrainConfig
from trainer.parallel.ranks import end_rank, leave_ranks
from trainer.parallel.start import make_parallel


def rule_config(name: str, model: Path, strategy: str, more: Mapping[str, Any]) -> TrainConfig:
    """A rule with AR and Lopti on."""
    settings = {f"algorithm.{key}": value for key, value in RULES[name].items()}
    base = {"reward.functions": {"math": 1.0}, "algorithm.kl_coef": 0.0, "parallel.strategy": strategy}
    return update_config(model, {**base, **settings, **more})


def run_rule(name: str, model: Path, folder: Path, strategy: str) -> dict[str, Any]:
    """One step; the weights after it are saved."""
    config = rule_config(name, model, strategy, {})
    parallel = make_parallel(config)
    updates = Updates(config, parallel, rewards_of(RULES[name]))
    result = updates.step(0)
    result["largest_gradient"] = largest_gradient(updates.optimizer)
    updates.export(folder / f"{name}.safetensors")
    parallel.close()
    return result


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    results = {name: run_rule(name, Path(job["model"]), folder, "ddp") for name in RULES}
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(results))
    leave_ranks()
    end_rank(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
