"""What one rank does in tests of the whole trainer: runs one after another in one process."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from loptune.progress import ProgressReport
from tests.invariants import rules  # noqa: F401  finds the rules that stand beside the package
from tests.trainer import test_loop
from trainer.config.schema import TrainConfig
from trainer.loop import Trainer
from trainer.parallel.ranks import exit_rank, leave_ranks
from trainer.parallel.strategy import make_parallel
from trainer.types import RunContext


def small_config(model: Path, overrides: dict[str, Any]) -> TrainConfig:
    sets = {
        "dev": {"source": "generated", "split": "dev", "size": 7},
        "one": {"source": "generated", "split": "test", "size": 1},
    }
    base = {
        "evaluation.sets": sets,
        "rollout.prompts_per_step": 4,
        "optim.update_batch_size": 8,
        "optim.tokens_per_microbatch": 800,
        "optim.eps": 1e-3,  # bounds what AdamW makes of a rounding: see tests/rounding.py
    }
    return test_loop.small_config(model, **(base | overrides))


class Saboteur(ProgressReport):
    """Stops the run or kills the process after a step."""

    def __init__(self, trainer: Trainer, stop_at: int | None, kill_at: int | None) -> None:
        self.trainer = trainer
        self.stop_at = stop_at
        self.kill_at = kill_at

    def step(self, step, metrics):
        if step == self.kill_at:
            self.trainer._checkpoint.wait()  # of the step before
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.stop_at:
            self.trainer.request_stop()


def run_case(
    config: TrainConfig, run_dir: Path, stop_at: int | None = None, kill_at: int | None = None
) -> Any:
    recorder = test_loop.Recorder()
    context = RunContext(run_dir, run_dir.parent, "test", run_dir.name)
    trainer = Trainer(config, context, recorder, parallel=make_parallel(config))
    trainer.progress = Saboteur(trainer, stop_at, kill_at)
    resumed_at = trainer.resume()
    trainer.train()
    trainer.close()
    metrics = {step: test_loop.without_times(logged) for step, logged in recorder.steps.items()}
    return {"step": trainer.step, "resumed_at": resumed_at, "metrics": metrics}


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    rank = os.environ["RANK"]
    results = {}
    for name, case in job["cases"].items():
        config = small_config(Path(job["model"]), case["overrides"])
        sabotage = case.get("sabotage", {}).get(rank, {})
        results[name] = run_case(config, Path(job["runs"]) / name, **sabotage)
        (folder / f"rank-{rank}.json").write_text(json.dumps(results))
    leave_ranks()
    exit_rank(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
