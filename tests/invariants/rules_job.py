"""What one rank does in the test of every update rule on two ranks: one training step from the same
weights.
"""

from pathlib import Path
from typing import Any

from tests.invariants.ranks import be_a_rank
from tests.invariants.rules import RULES
from tests.invariants.update_job import Updates, update_config
from tests.rounding import largest_gradient
from trainer.config.schema import TrainConfig
from trainer.parallel.strategy import make_parallel


def rule_config(name: str, model: Path, strategy: str, more: dict[str, Any]) -> TrainConfig:
    """A rule with AR and Lopti on."""
    settings = {f"algorithm.{key}": value for key, value in RULES[name].items()}
    base = {
        "reward.functions": {"math": 1.0},
        "algorithm.kl_coef": 0.0,
        "parallel.strategy": strategy,
    }
    return update_config(model, base | settings | more)


def run_rule(name: str, model: Path, folder: Path, strategy: str) -> dict[str, Any]:
    """One step; the weights after it are saved."""
    config = rule_config(name, model, strategy, {})
    parallel = make_parallel(config)
    updates = Updates(config, parallel)
    result = updates.step(0)
    result["largest_gradient"] = largest_gradient(updates.optimizer)
    updates.export(folder / f"{name}.safetensors")
    parallel.close()
    return result


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    return {name: run_rule(name, Path(job["model"]), folder, "ddp") for name in RULES}


if __name__ == "__main__":
    be_a_rank(work)
