"""A trainer without a model: the real one's interface and records, steps of a few milliseconds,
faults on order.

``runs_dir/faults.json`` maps a trial to the faults it shall meet, e.g. ``{"c001-s0": {"kill_at":
3}}``:

- ``kill_at``: SIGKILL itself before the step after this one, the first time (``always``: every
  time)
- ``diverge_at``: raise DivergedError there
- ``nan_at``: report a score that is not a number from this step on
- ``raise_at``: raise RuntimeError there, every time
- ``hang_at``: never return from there
- ``step_s``: seconds of a step (LOPTUNE_FAKE_STEP_S sets it for all trials)
"""

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loptune.errors import DivergedError
from loptune.files import JsonLines
from sweep.programs.base import Assignment, ResourcesSpec, Values
from sweep.programs.loptune import LoptuneProgram
from trainer.tracking.uploading import metrics_record, offset_after_step, recorded_values


class FakeTrainer:
    def __init__(self, assignment: Assignment) -> None:
        config = assignment.config
        runs_dir = assignment.context.runs_dir
        self.run_dir = assignment.context.run_dir
        self.log = self.run_dir / "fake.jsonl"
        self.stop_file = assignment.stop_file
        self.stopped = False
        self.total_steps = config.max_steps or 8
        self.every = config.evaluation.every_steps
        self.quality = config.algorithm.ar_alpha + 0.01 * config.seed
        self.step = 0
        faults = runs_dir / "faults.json"
        self.faults = (
            json.loads(faults.read_text()).get(assignment.trial, {}) if faults.exists() else {}
        )
        self.step_s = self.faults.get("step_s", float(os.environ.get("LOPTUNE_FAKE_STEP_S", "0.1")))
        self.tracker = open_tracker(assignment)
        self._record("build", password=os.environ.get("MLFLOW_TRACKING_PASSWORD", "")[-3:])

    @property
    def done(self) -> bool:
        return self.step >= self.total_steps

    @property
    def history(self) -> Mapping[int, float]:
        return self.tracker.history

    def train_until_evaluation(self) -> Mapping[str, float]:
        metrics: dict[str, float] = {}
        while not metrics and not self.stopped:
            self._fault()
            time.sleep(self.step_s)
            self.step += 1
            if self.step % self.every == 0 or self.done:
                metrics = self._evaluate()
            self.tracker.log({"rollout/reward": self.quality, **metrics}, self.step)
            self._record("step")
            self.stopped = self.stop_file.exists()
        self.save_checkpoint()
        return {**metrics, "step": float(self.step)}

    def save_checkpoint(self) -> Path:
        folder = self.run_dir / "checkpoints" / f"step-{self.step}"
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir(exist_ok=True)
        partial = folder / "state.json.tmp"
        partial.write_text(json.dumps(self.state()))
        partial.rename(folder / "state.json")
        return folder

    def state(self) -> dict[str, float]:
        return {"step": self.step}

    def place(self) -> dict[str, str]:
        return {}

    def resume(self) -> int:
        states = (self.run_dir / "checkpoints").glob("step-*/state.json")
        self.step = max((json.loads(state.read_text())["step"] for state in states), default=0)
        self.tracker.rewind(self.step)
        self._record("resume")
        return self.step

    def close(self, status: str = "FINISHED") -> None:
        self.tracker.close(status)
        self._record(f"close {status}")

    def _evaluate(self) -> dict[str, float]:
        score = self.quality + 0.001 * self.step
        if self.step >= self.faults.get("nan_at", 10**9):
            score = float("nan")
        return {"eval/accuracy": score, "eval/reward": 3 * score}

    def _fault(self) -> None:
        step = self.step
        faults = self.faults
        if step == faults.get("diverge_at"):
            raise DivergedError(step, "policy/loss", float("nan"))
        if step == faults.get("raise_at"):
            raise RuntimeError("the disk caught fire")
        if step == faults.get("hang_at"):
            time.sleep(3600)
        marker = self.run_dir / f"killed-{step}"
        if step == faults.get("kill_at") and (faults.get("always") or not marker.exists()):
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def _record(self, event: str, **more: str) -> None:
        line = {
            "event": event,
            "step": self.step,
            "pid": os.getpid(),
            "time": time.time(),
            **self.place(),
            **more,
        }
        with self.log.open("a") as out:
            out.write(json.dumps(line) + "\n")


class LocalTracker:
    """The part of a Tracker that writes ``metrics.jsonl``: MLflow and torch take seconds to
    import.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "metrics.jsonl"
        self.lines = JsonLines(self.path)

    @property
    def history(self) -> Mapping[int, float]:
        return recorded_values(self.path, "eval/accuracy")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.lines.append(metrics_record(metrics, step))

    def rewind(self, step: int) -> None:
        self.lines.cut(offset_after_step(self.path, step))

    def close(self, status: str) -> None:
        pass


def open_tracker(assignment: Assignment) -> Any:
    if os.environ.get("RANK", "0") != "0":
        from tests.sweep.fake_ranks import SilentTracker

        return SilentTracker()
    if assignment.config.tracking.offline:
        return LocalTracker(assignment.context.run_dir)
    from trainer.tracking.tracker import Tracker

    context = replace(
        assignment.context, run_name=assignment.trial, shares_process=False, attempt=0
    )
    return Tracker(assignment.config, context, must_connect=False)


class FakeProgram(LoptuneProgram):
    """loptune's trainer but for what it trains."""

    def check_early(
        self, searched: Values, resources: ResourcesSpec, metrics: Sequence[str]
    ) -> None:
        """Take whatever model and data the space names."""

    def start(self, assignment: Assignment) -> Any:
        if os.environ.get("WORLD_SIZE", "1") == "1":
            return FakeTrainer(assignment)
        from tests.sweep.fake_ranks import FakeRank

        return FakeRank(assignment)
