"""``sweep report``, ``evidence``, ``upload`` and ``ui``: reports and MLflow."""

import argparse
from dataclasses import asdict
from functools import partial

from loptune.credentials import check_address
from loptune.errors import MissingError
from loptune.run_names import lock_owner
from loptune.terminal.arguments import Commands, add_json, add_runs_dir, port
from loptune.terminal.table import print_json, print_table
from loptune.terminal.ui import serve
from sweep.commands.arguments import add_named
from sweep.record.best import choose_best
from sweep.record.sweep_record import open_sweep
from sweep.tracking.view import save_view
from trainer.config.tracking import TrackingConfig
from trainer.tracking.mlflow_store import connect, tracking_uri


def add_commands(commands: Commands) -> None:
    """Add ``sweep report``, ``evidence``, ``upload`` and ``ui``."""
    add_named(commands, "report", _report, "rewrite a sweep's report")

    evidence = commands.add_parser(
        "evidence", help="list each update rule's improvement over all confirmed sweeps"
    )
    evidence.add_argument(
        "store", nargs="?", help="URI of an MLflow store (default: the runs folder's)"
    )
    add_runs_dir(evidence)
    add_json(evidence)
    evidence.set_defaults(command=_evidence)

    add_named(commands, "upload", _upload, "send an offline sweep to MLflow, and write its report")

    ui = add_named(commands, "ui", _ui, "open the MLflow UI on this machine")
    ui.add_argument("--port", type=port, default=5000, help="port on 127.0.0.1 (default: 5000)")


def _report(arguments: argparse.Namespace) -> int:
    from sweep.record.results import read_results
    from sweep.tracking.parent_run import find_parent
    from sweep.tracking.publish_report import send_report, write_report
    from sweep.tracking.upload import send_unsent

    sweep = open_sweep(arguments.runs_dir, arguments.name)
    results = read_results(sweep)
    if best := choose_best(sweep, results).text(sweep.spec.objective):
        print(best)
    print(write_report(sweep, results))
    parent = find_parent(sweep)
    if parent is None:
        return 0
    if lock_owner(sweep.folder.root) is None:  # a running sweep sends its own records
        send_unsent(sweep, parent.uri)
    send_report(sweep, results, parent)
    return 0


def _evidence(arguments: argparse.Namespace) -> int:
    from dashboards.evidence import HEADINGS, collect_comparisons
    from dashboards.sources.mlflow import read_sweeps

    check_address(arguments.store, "command line, STORE")
    uri = tracking_uri(TrackingConfig(uri=arguments.store), arguments.runs_dir)
    connect(uri)  # reading would create a missing store
    counted, left = collect_comparisons(read_sweeps(uri))
    if arguments.json:
        print_json(
            {
                "settings": [asdict(row) for row in counted],
                "left_out": [asdict(row) for row in left],
            }
        )
        return 0
    if counted:
        print_table(HEADINGS, [row.cells for row in counted])
    else:
        print("no sweep in this store has run a rule on fresh seeds: run `sweep confirm NAME`")
    for row in left:
        print(f"not counted: {row.rule or 'every rule'} of {row.sweep} ({row.left_out})")
    return 0


def _upload(arguments: argparse.Namespace) -> int:
    from sweep.tracking.upload import upload_sweep

    sweep = open_sweep(arguments.runs_dir, arguments.name)
    print(f"report: {upload_sweep(sweep)}")
    print(f"MLflow: {sweep.command('ui')}")
    return 0


def _ui(arguments: argparse.Namespace) -> int:
    sweep = open_sweep(arguments.runs_dir, arguments.name)
    folder = sweep.folder
    tracking = sweep.spec.program.tracking_settings
    if tracking.offline:
        raise MissingError(
            f"sweep {folder.name} ran offline",
            str(folder.root),
            f"{sweep.command('upload')} sends it to MLflow",
            code="sweep-offline",
        )
    uri = tracking_uri(tracking, folder.runs_dir)
    page = partial(save_view, uri, sweep.spec)
    return serve(uri, arguments.port, page, f"sweep {folder.name}", sweep.command("ui"))
