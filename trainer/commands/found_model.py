"""The model that a name on the command line means: a run, a checkpoint, a folder or a hub name."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.files import damaged_files, intact_checkpoints
from trainer.config.schema import load_config
from trainer.errors import MissingError, StorageError

_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class FoundModel:
    """A hub name or folder, the run it comes from, and its training step (0 if unknown)."""

    name_or_path: str
    run_config: Path | None
    step: int


def find_model(model: str) -> FoundModel:
    """The model behind ``tiny``, a hub name, a model folder, a checkpoint, or a run (its newest checkpoint).

    Raises:
        MissingError: a run without an intact checkpoint.
        StorageError: a checkpoint whose files are not what was written.
    """
    folder = Path(model).expanduser()
    if (folder / "config.yaml").is_file() and not (folder / "config.json").is_file():
        newest = next(intact_checkpoints(folder / "checkpoints"), None)
        if newest is None:
            raise MissingError(f"run {folder.name} has no intact checkpoint", str(folder), "train it first")
        folder = newest
    found = _STEP.fullmatch(folder.name)
    if found is None or not folder.is_dir():
        return FoundModel(model, None, 0)
    damaged = damaged_files(folder)
    if damaged:
        raise StorageError(
            f"the checkpoint is damaged: {', '.join(damaged)}", str(folder), "evaluate another step of the run"
        )
    config = folder.parent.parent / "config.yaml"
    return FoundModel(str(folder), config if config.is_file() else None, int(found[1]))


def last_checkpoints(run: str, count: int) -> list[FoundModel]:
    """The last ``count`` checkpoints of a run, oldest first.

    Raises:
        MissingError: not a run folder, or one without so many checkpoints one after the other.
    """
    folder = Path(run).expanduser()
    root = folder / "checkpoints"
    if not (folder / "config.yaml").is_file() or not root.is_dir():
        raise MissingError("only a run has last checkpoints", run, "give the folder of a run, or leave out --last")
    config = load_config(str(folder / "config.yaml"))
    paths = list(itertools.islice(intact_checkpoints(root), count))[::-1]
    steps = [int(path.name.removeprefix("step-")) for path in paths]
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    # The best checkpoint may be kept though those after it are gone.
    if len(steps) < count or any(gap > config.checkpoint.every_steps for gap in gaps):
        raise MissingError(
            f"the last {count} checkpoints are not all there: steps {', '.join(map(str, steps)) or 'none'} are",
            str(root),
            f"train with checkpoint.keep_last={count} (and sweep with storage.ended_trials=all), or take fewer",
        )
    return [FoundModel(str(path), folder / "config.yaml", step) for path, step in zip(paths, steps, strict=True)]
