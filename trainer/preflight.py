"""Checks that run before torch and the model are loaded."""

from pathlib import Path

from loptune.errors import MissingError
from loptune.run_names import command_line
from trainer.config.data import DatasetConfig
from trainer.config.schema import TrainConfig
from trainer.hub import check_available
from trainer.policy.architectures import TINY, no_such_folder
from trainer.policy.packaged import PACKAGED, SUFFIX
from trainer.problems.sources import check_source
from trainer.tracking.mlflow_store import check_store, tracking_uri
from trainer.tracking.writers import check_installed


def check_sources(config: TrainConfig, spec: Path | None, trains: bool = True) -> None:
    """Check that data files and a local model folder exist.

    Args:
        config: the run's configuration.
        spec: the run file. If a missing file is next to it, the error says so.
        trains: whether training data is read, too.

    Raises:
        MissingError, ConfigError: a file is missing or unsupported. The loaders would raise the
            same error seconds later.
    """
    datasets: list[DatasetConfig] = list(config.evaluation.sets.values())
    if trains:
        datasets = [*config.data.train, *datasets]
    for dataset in datasets:
        try:
            check_source(dataset)
        except MissingError as error:
            raise _with_place(error, spec, dataset.source) from None
    model = config.model.name_or_path
    is_folder = model.startswith(("./", "../", "/", "~"))
    if is_folder and not Path(model).expanduser().exists():
        raise _with_place(no_such_folder(model), spec, model)


def _with_place(error: MissingError, spec: Path | None, name: str) -> MissingError:
    """Return the error of a missing file; if it is next to the run file, its hint says so."""
    folder = spec.parent if spec is not None else Path()
    if folder.resolve() == Path.cwd() or not (folder / name).exists():
        return error
    command = command_line("cd", str(folder))
    return error.with_hint(
        f"it is next to {spec}, but paths are relative to the current directory: {command}"
    )


def check_model(config: TrainConfig) -> None:
    """Check that a model from the Hub is in the cache or can be requested. Call after all other
    checks: an unreachable Hub may take seconds to fail.

    Raises:
        MissingError: the model is not available. The loaders would raise the same error many
            seconds later.
    """
    name = config.model.name_or_path
    if name == TINY or name in PACKAGED or name.endswith(SUFFIX):
        return
    if name.count("/") <= 1 and not Path(name).expanduser().exists():
        check_available(name)


def check_tracking(config: TrainConfig, runs_dir: Path) -> None:
    """Check that the tracking store and reporting packages are available.

    Raises:
        ConfigError, StorageError: the run could not report.
    """
    check_installed(config)
    if not config.tracking.offline:
        check_store(tracking_uri(config.tracking, runs_dir))
