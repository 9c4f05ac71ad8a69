"""``sweep report``, ``upload`` and ``ui``: pages made of what MLflow holds."""

import argparse

from sweep.commands.arguments import add_named
from sweep.record.folder import SweepFolder, command, existing_sweep, holder, read_spec
from sweep.space.spec import SweepSpec
from trainer.commands.arguments import Commands, add_runs_dir, port
from trainer.errors import ConfigError, MissingError, StorageError


def add_report(commands: Commands) -> None:
    """``sweep report``."""
    report = commands.add_parser("report", help="write the report again, or compare sweeps")
    add_runs_dir(report)
    report.add_argument("names", nargs="+", metavar="name", help="a sweep; several are compared on one page")
    report.add_argument("--png", action="store_true", help="PNGs of the pictures too (needs Chromium or Chrome)")
    report.set_defaults(command=_report)


def add_upload(commands: Commands) -> None:
    """``sweep upload``."""
    upload = add_named(commands, "upload", "send a sweep that ran --offline to MLflow, and write its report")
    upload.set_defaults(command=_upload)


def add_ui(commands: Commands) -> None:
    """``sweep ui``."""
    ui = add_named(commands, "ui", "open the MLflow UI on this machine")
    ui.epilog = "Optuna's view of the search: optuna-dashboard sqlite:///runs/NAME/study.db"
    ui.add_argument("--port", type=port, default=5000, help="port on 127.0.0.1 (default: 5000)")
    ui.set_defaults(command=_ui)


def _report(arguments: argparse.Namespace) -> int:
    folders = [existing_sweep(arguments.runs_dir, name) for name in dict.fromkeys(arguments.names)]
    uris = [_complete_store(folder) for folder in folders]
    if len(set(uris)) > 1:
        raise ConfigError(
            "the sweeps are in different MLflow stores", ", ".join(uris), "compare those of one store"
        )
    if len(folders) == 1:
        from sweep.record.report import report

        print(report(folders[0], read_spec(folders[0]), uris[0], png=arguments.png))
        return 0
    from dashboards.pages.comparison import write_comparison

    names = [folder.name for folder in folders]
    out_dir = folders[0].runs_dir / "comparisons" / "-".join(names)
    print(write_comparison(names, uris[0], out_dir, png=arguments.png))
    return 0


def _upload(arguments: argparse.Namespace) -> int:
    from sweep.record.upload import upload_sweep
    from sweep.runner import open_parent

    folder = existing_sweep(arguments.runs_dir, arguments.name)
    print(f"report: {upload_sweep(read_spec(folder), folder, open_parent)}")
    print(f"MLflow: {command('ui', folder)}")
    return 0


def _ui(arguments: argparse.Namespace) -> int:
    from sweep.views.ui import save_view
    from trainer.tracking.ui import serve

    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    uri = recorded_uri(spec, folder)
    page = save_view(uri, spec.base.tracking.experiment or spec.name, spec)
    if uri.startswith("http"):
        print(f"MLflow: {uri}{page}  (sweep {folder.name})")
        return 0
    serve(uri, arguments.port, page, f"sweep {folder.name}", command("ui", folder))


def _complete_store(folder: SweepFolder) -> str:
    """The MLflow store of a sweep, once it has all that the trials recorded; a running sweep sends by itself."""
    from sweep.record.unsent import send_unsent

    uri = recorded_uri(read_spec(folder), folder)
    unsent = send_unsent(folder, uri) if holder(folder) is None else None
    if unsent is not None:
        raise unsent
    return uri


def recorded_uri(spec: SweepSpec, folder: SweepFolder) -> str:
    """The MLflow store that holds a sweep.

    Raises:
        MissingError: it ran offline.
        StorageError: its database does not exist.
    """
    from trainer.tracking.mlflow_store import sqlite_path, tracking_uri

    if spec.base.tracking.offline:
        raise MissingError(
            f"sweep {folder.name} ran offline", str(folder.root), f"{command('upload', folder)} sends it to MLflow"
        )
    uri = tracking_uri(spec.base.tracking, folder.runs_dir)
    database = sqlite_path(uri)
    if database is not None and not database.exists():
        raise StorageError("the MLflow store is gone", str(database), "restore it from a backup")
    return uri
