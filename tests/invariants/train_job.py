"""What one rank does in tests of the whole trainer: runs one after another in one process."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from trainer.config.schema import TrainConfig, apply_overrides, load_config
from trainer.loop import Trainer
from trainer.parallel.ranks import end_rank, leave_ranks
from trainer.parallel.start import make_parallel
from trainer.progress import ProgressReport
from trainer.tracking.tracker import NullTracker
from trainer.types import RunContext


def small_config(model: Path, overrides: dict[str, Any]) -> TrainConfig:
    base = {
        "model.name_or_path": str(model),
        "data.train": {"source": "generated", "size": 20},
        "evaluation.sets": {
            "dev": {"source": "generated", "split": "dev", "size": 7},
            "one": {"source": "generated", "split": "test", "size": 1},
        },
        "evaluation.every_steps": 2,
        "checkpoint.every_steps": 2,
        "rollout.prompts_per_step": 4,
        "rollout.group_size": 4,
        "rollout.max_new_tokens": 40,
        "optim.update_batch_size": 8,
        "optim.tokens_per_microbatch": 800,
        "optim.kept_forward_tokens": 0,  # of whole rows; ranks keep none, and their tokens are compared
        "algorithm.lopti_eta": 0.5,
        "algorithm.ar_alpha": 0.3,
        "algorithm.kl_coef": 0.01,
        "max_steps": 4,
    }
    return apply_overrides(load_config("tiny_kk"), base | overrides)


class Recorder(NullTracker):
    """Keeps what the trainer logs, without times."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}

    def log(self, metrics, step):
        kept = {name: value for name, value in metrics.items() if not name.startswith("time/")}
        self.steps.setdefault(step, {}).update(kept)


class Saboteur(ProgressReport):
    """Stops the run or kills the process after a step."""

    def __init__(self, trainer: Trainer, stop_at: int | None, kill_at: int | None) -> None:
        self.trainer, self.stop_at, self.kill_at = trainer, stop_at, kill_at

    def step(self, step, metrics):
        if step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.stop_at:
            self.trainer.request_stop()


def run_case(config: TrainConfig, run_dir: Path, stop_at: int | None = None, kill_at: int | None = None) -> Any:
    started = time.perf_counter()
    recorder = Recorder()
    parallel = make_parallel(config)
    trainer = Trainer(
        config, RunContext(run_dir, run_dir.parent, "test", run_dir.name), recorder, parallel=parallel
    )
    set_up = time.perf_counter() - started
    trainer.progress = Saboteur(trainer, stop_at, kill_at)
    resumed_at = trainer.resume()
    trainer.train()
    result = {
        "step": trainer.step,
        "resumed_at": resumed_at,
        "metrics": recorder.steps,
        "set_up_s": set_up,
        "s": time.perf_counter() - started,
    }
    trainer.close()
    return result


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
    end_rank(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
