"""A trial of loptune's own trainer in a rank process."""

from pathlib import Path
from typing import TYPE_CHECKING

from sweep.programs.base import Assignment
from trainer.config.schema import TrainConfig, value_of
from trainer.progress import MetricValues, ProgressReport

if TYPE_CHECKING:  # torch takes seconds to import
    from trainer.loop import Trainer

_OF_THE_ENGINE = (
    "model",
    "data.max_prompt_tokens",
    "rollout.engine",
    "rollout.vllm",
    "rollout.max_new_tokens",
    "rollout.prompts_per_step",
    "rollout.group_size",
)


class StopWatcher(ProgressReport):
    """Called after every training step; asks the trainer to stop once the stop file exists."""

    def __init__(self, stop_file: Path) -> None:
        self._stop_file = stop_file
        self.trainer: Trainer | None = None

    def step(self, step: int, metrics: MetricValues) -> None:
        """Check for the stop file after a training step."""
        if self.trainer is not None and self._stop_file.exists():
            self.trainer.request_stop()


def start_trainer(assignment: Assignment) -> "Trainer":
    """Build the trainer of ``trainer run``, for a rank."""
    from trainer.loop import Trainer
    from trainer.parallel.device import free_memory
    from trainer.parallel.start import make_parallel
    from trainer.tracking.tracker import NullTracker, Tracker

    config = assignment.config
    context = assignment.context
    free_memory()  # of the previous trial in this process
    parallel = make_parallel(config)
    tracker: Tracker | NullTracker = NullTracker()
    if parallel.is_main:
        # MLflow may be down: the record is on disk and is sent when MLflow answers.
        tracker = Tracker(config, context, must_connect=False)
    watcher = StopWatcher(assignment.stop_file)
    try:
        watcher.trainer = Trainer(config, context, tracker, watcher, parallel)
    except BaseException:
        tracker.close("FAILED")
        raise
    return watcher.trainer


def shares_engine(before: TrainConfig, after: TrainConfig) -> bool:
    """Return whether a rank's engine can serve both: vLLM does not free all of its GPU memory
    within a process.
    """
    if after.rollout.engine == "transformers" or after.rollout.vllm.mode != "colocate":
        return True
    return all(value_of(before, key) == value_of(after, key) for key in _OF_THE_ENGINE)
