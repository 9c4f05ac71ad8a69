"""``sweep report``, ``evidence``, ``upload`` and ``ui``: pages on sweeps from their MLflow store."""

import argparse
from dataclasses import asdict

from sweep.commands.arguments import add_named
from sweep.record.folder import holder
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.tracking.view import save_view
from trainer.config.tracking import TrackingConfig
from trainer.errors import MissingError, StorageError
from trainer.shell.arguments import Commands, add_json, add_runs_dir, port
from trainer.shell.preflight import check_port
from trainer.shell.table import print_json, print_table
from trainer.tracking.mlflow_store import sqlite_path, tracking_uri
from trainer.tracking.ui import serve


def add_commands(commands: Commands) -> None:
    """Add ``sweep report``, ``evidence``, ``upload`` and ``ui``."""
    add_named(commands, "report", _report, "write a sweep's report again")

    evidence = commands.add_parser("evidence", help="list what all confirmed sweeps found about each update rule")
    evidence.add_argument("store", nargs="?", help="URI of an MLflow store (default: that of the runs folder)")
    add_runs_dir(evidence)
    add_json(evidence)
    evidence.set_defaults(command=_evidence)

    add_named(commands, "upload", _upload, "send an offline sweep to MLflow, and write its report")

    ui = add_named(commands, "ui", _ui, "open the MLflow UI on this machine")
    ui.add_argument("--port", type=port, default=5000, help="port on 127.0.0.1 (default: 5000)")


def _report(arguments: argparse.Namespace) -> int:
    from sweep.record.results import read_results
    from sweep.tracking.parent_run import find_parent
    from sweep.tracking.report import send_report, write_report
    from sweep.tracking.upload import send_unsent

    sweep = open_sweep(arguments.runs_dir, arguments.name)
    results = read_results(sweep)
    print(write_report(sweep, results))
    parent = find_parent(sweep)
    if parent is None:
        return 0
    if holder(sweep.folder) is None and (unsent := send_unsent(sweep, parent.uri)):  # a running sweep sends by itself
        raise unsent
    send_report(sweep, results, parent)
    return 0


def _evidence(arguments: argparse.Namespace) -> int:
    from dashboards.evidence import HEADINGS, gathered
    from dashboards.sources.mlflow import read_sweeps

    uri = tracking_uri(TrackingConfig(uri=arguments.store), arguments.runs_dir)
    check_store(uri)
    counted, left = gathered(read_sweeps(uri))
    if arguments.json:
        print_json({"settings": [asdict(row) for row in counted], "left_out": [asdict(row) for row in left]})
        return 0
    if counted:
        print_table(HEADINGS, [row.cells for row in counted])
    else:
        print("no sweep of this store has measured a rule on fresh seeds: `sweep confirm NAME` does")
    for row in left:
        print(f"not counted: {row.rule or 'every rule'} of {row.sweep}, {row.left_out}")
    return 0


def _upload(arguments: argparse.Namespace) -> int:
    from sweep.tracking.upload import upload_sweep

    sweep = open_sweep(arguments.runs_dir, arguments.name)
    print(f"report: {upload_sweep(sweep)}")
    print(f"MLflow: {sweep.command('ui')}")
    return 0


def _ui(arguments: argparse.Namespace) -> int:
    sweep = open_sweep(arguments.runs_dir, arguments.name)
    name = sweep.folder.name
    uri = recorded_uri(sweep)
    if not uri.startswith("http"):
        check_port(arguments.port, sweep.command("ui"))
    return serve(uri, arguments.port, save_view(uri, sweep.spec), f"sweep {name}")


def recorded_uri(sweep: SweepRecord) -> str:
    """Return the MLflow store that holds a sweep.

    Raises:
        MissingError: it ran offline.
        StorageError: its database does not exist.
    """
    folder = sweep.folder
    tracking = sweep.spec.program.settings
    if tracking.offline:
        hint = f"{sweep.command('upload')} sends it to MLflow"
        raise MissingError(f"sweep {folder.name} ran offline", str(folder.root), hint)
    uri = tracking_uri(tracking, folder.runs_dir)
    check_store(uri)
    return uri


def check_store(uri: str) -> None:
    """Raise a StorageError where a SQLite store does not exist: MLflow would make one."""
    database = sqlite_path(uri)
    if database is not None and not database.exists():
        raise StorageError("no MLflow store", str(database), "restore it from a backup, or name another")
