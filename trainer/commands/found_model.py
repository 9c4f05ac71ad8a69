"""Resolution of a model name on the command line: run, checkpoint, model folder or Hub name."""

import re
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.files import damaged_files, intact_checkpoints
from trainer.errors import MissingError, StorageError
from trainer.run_folder import RunFolder

_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class FoundModel:
    """A model folder or Hub name, with the run's config file and the training step (0 if
    unknown).
    """

    name_or_path: str
    run_config: Path | None
    step: int


def find_model(model: str) -> FoundModel:
    """Resolve ``tiny``, a Hub name, a model folder, a checkpoint, or a run (its newest intact
    checkpoint).

    Raises:
        MissingError: a run without an intact checkpoint.
        StorageError: the checkpoint is damaged.
    """
    folder = Path(model).expanduser()
    if RunFolder(folder).config.is_file() and not (folder / "config.json").is_file():
        newest = next(intact_checkpoints(RunFolder(folder).checkpoints), None)
        if newest is None:
            raise MissingError(
                f"run {folder.name} has no intact checkpoint", str(folder), "train it first"
            )
        folder = newest
    step = _STEP.fullmatch(folder.name)
    if step is None or not folder.is_dir():
        return FoundModel(model, None, 0)
    damaged = damaged_files(folder)
    if damaged:
        raise StorageError(
            f"the checkpoint is damaged: {', '.join(damaged)}",
            str(folder),
            "evaluate another step of the run",
        )
    config = RunFolder(folder.parent.parent).config
    return FoundModel(str(folder), config if config.is_file() else None, int(step[1]))
