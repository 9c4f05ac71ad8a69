"""File layout of a run or trial folder."""

from pathlib import Path


class RunFolder:
    """Paths in a run or trial folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"  # configuration of the latest start
        # configuration of the first start: config.yaml may have been edited since
        self.first_config = root / "started.yaml"
        self.inputs = root / "inputs.json"  # hashes of data, rewards and rules
        self.metrics = root / "metrics.jsonl"  # one line per step and per evaluation
        # discarded metric records: a later process of the trial's command resumed from an earlier
        # step
        self.abandoned = root / "abandoned.jsonl"
        self.completions = root / "completions.jsonl"
        self.correctness = root / "correctness.jsonl"  # per-problem results of each evaluation
        self.evaluation = root / "evaluation.json"  # the result of `trainer evaluate`
        self.tracking = root / "tracking.json"  # state of the MLflow upload
        self.checkpoints = root / "checkpoints"
        self.attempt = root / "attempt"  # number of the newest attempt
        self.stop = root / "stop"  # if it exists, the run stops at the next step boundary
        self.failure = root / "failure.txt"  # last error of a trial
        self.stdout = root / "stdout.log"  # output of a trial's command
        self.stderr = root / "stderr.log"  # stderr of a trial's ranks and of its command

    def checkpoint(self, step: int) -> Path:
        """Return the checkpoint folder of a step."""
        return self.checkpoints / f"step-{step}"
