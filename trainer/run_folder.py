"""The files of a run or trial, by name."""

from pathlib import Path


class RunFolder:
    """Paths in the folder of a run; a sweep's trial has the same."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"  # the configuration of the latest start
        self.first_config = root / "started.yaml"  # of the first: config.yaml may have been edited
        self.inputs = root / "inputs.json"  # hashes of data, rewards and rules
        self.metrics = root / "metrics.jsonl"  # a line a step, and one an evaluation
        self.completions = root / "completions.jsonl"
        self.correctness = root / "correctness.jsonl"  # of each problem, at each evaluation
        self.evaluation = root / "evaluation.json"  # the result of `trainer evaluate`
        self.tracking = root / "tracking.json"  # what MLflow has of the run
        self.checkpoints = root / "checkpoints"
        self.attempt = root / "attempt"  # number of the newest one
        self.failure = root / "failure.txt"  # the last thing that went wrong in a trial
        self.stdout = root / "stdout.log"  # of a trial's command
        self.stderr = root / "stderr.log"  # of a trial's ranks

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self.checkpoints / f"step-{step}"
