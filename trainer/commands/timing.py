"""Where the seconds of a training step go, in the four rows of arXiv:2505.12929, table 6."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from trainer.config.schema import TrainConfig
from trainer.files import read_json_lines
from trainer.loop import Trainer
from trainer.parallel.start import make_parallel
from trainer.tracking.tracker import NullTracker
from trainer.types import RunContext

PUBLISHED_ETA = 0.5  # of arXiv:2505.12929, where the configuration has Lopti off
WITHOUT, WITH = "w/o Lopti", "w/ Lopti"

StepSeconds = dict[str, float]


def step_seconds(steps: Sequence[Mapping[str, float]]) -> StepSeconds:
    """Seconds of a step: sampling, training (the optimizer steps), others, each the steps' median; their sum.

    A step that waited for other programs does not count in a median.

    Args:
        steps: ``time/*`` of one or more steps. The first of several is left out: it waits for kernels, caches and
            memory that the others find.
    """
    counted = steps[1:] or steps
    sampling = median(step["time/rollout"] for step in counted)
    training = median(step["time/update"] for step in counted)
    others = median(step["time/step"] - step["time/rollout"] - step["time/update"] for step in counted)
    return {"sampling": sampling, "training": training, "others": others, "total": sampling + training + others}


def recorded_seconds(metrics_file: Path) -> StepSeconds | None:
    """The same of a run's ``metrics.jsonl``; None where it holds no step."""
    if not metrics_file.is_file():
        return None
    steps = [record for record, _ in read_json_lines(metrics_file) if "time/step" in record]
    return step_seconds(steps) if steps else None


def measure(config: TrainConfig, folder: Path, steps: int) -> dict[str, StepSeconds]:
    """Seconds per step without and with Lopti, of all else the same, each after a step that is not counted.

    Args:
        config: eta is its own, or the published one where it is 0.
        folder: what the engine writes of itself.
        steps: counted ones.
    """
    eta = config.algorithm.lopti_eta or PUBLISHED_ETA
    found = {}
    for name, threshold in ((WITHOUT, 0.0), (WITH, eta)):
        algorithm = config.algorithm.model_copy(update={"lopti_eta": threshold, "token_filter": "none"})
        one = config.model_copy(update={"algorithm": algorithm, "max_steps": steps + 1})
        # The rollout engine is kept for the second run.
        context = RunContext(folder, folder.parent, "timing", folder.name, is_one_of_many=threshold == 0)
        trainer = Trainer(one, context, NullTracker(), parallel=make_parallel(one))
        try:
            found[name] = step_seconds([trainer.training_step() for _ in range(steps + 1)])
        finally:
            trainer.close()
        del trainer  # its models, before those of the next
    return found


def table_lines(columns: Mapping[str, StepSeconds]) -> list[str]:
    """The rows of table 6 as text, a column for every name."""
    widths = [max(9, len(name)) for name in columns]
    head = "  ".join(f"{name:>{width}}" for name, width in zip(columns, widths, strict=True))
    lines = [f"s per step  {head}"]
    for row in ("sampling", "training", "others", "total"):
        cells = "  ".join(
            f"{seconds[row]:>{width}.2f}" for seconds, width in zip(columns.values(), widths, strict=True)
        )
        lines.append(f"{row:<10}  {cells}")
    return lines
