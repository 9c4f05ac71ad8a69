"""``sweep report``, ``evidence``, ``upload`` and ``ui``: reports and MLflow."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loptune.credentials import check_address
from loptune.errors import MissingError
from loptune.run_names import lock_owner
from loptune.section import Port
from loptune.terminal.arguments import Commands
from loptune.terminal.commands import Command, Option, RunsDir, add_command, printing_command
from loptune.terminal.table import print_table
from loptune.terminal.ui import serve
from sweep.commands.arguments import SweepName
from sweep.record.best import choose_best
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.tracking.view import save_view
from trainer.config.tracking import TrackingConfig
from trainer.tracking.mlflow_store import connect, tracking_uri

if TYPE_CHECKING:
    from dashboards.evidence import RuleComparison
    from dashboards.judging import Judgement


def add_commands(commands: Commands) -> None:
    """Add ``sweep report``, ``evidence``, ``upload`` and ``ui``."""
    for command in (REPORT, EVIDENCE, UPLOAD, UI):
        add_command(commands, command)


@dataclass(frozen=True)
class WrittenReport:
    """A report on disk."""

    file: Path
    best: str  # the best configuration with its caveats; empty if none is complete
    judgement: "Judgement"


def report(name: SweepName, *, runs_dir: RunsDir = Path("runs")) -> WrittenReport:
    """Rewrite a sweep's report. The report is made from the records, and sent to MLflow if the
    sweep is recorded there.

    Raises:
        MissingError: there is no such sweep.
        StorageError: a record is damaged, or MLflow cannot be reached.
    """
    from dashboards.judging import Judgement
    from sweep.record.results import read_results
    from sweep.tracking.parent_run import find_parent
    from sweep.tracking.publish_report import send_report, write_report
    from sweep.tracking.upload import send_unsent

    sweep = open_sweep(runs_dir, name)
    results = read_results(sweep)
    written = WrittenReport(
        file=write_report(sweep, results),
        best=choose_best(sweep, results).text(sweep.spec.objective),
        judgement=Judgement.of(results),
    )
    parent = find_parent(sweep)
    if parent is not None:
        if lock_owner(sweep.folder.root) is None:  # a running sweep sends its own records
            send_unsent(sweep, parent.uri)
        send_report(sweep, results, parent)
    return written


def _report_fields(written: WrittenReport) -> dict[str, Any]:
    return {"report": str(written.file), **written.judgement.fields()}


def _show_report(written: WrittenReport) -> None:
    if written.best:
        print(written.best)
    print(written.file)


@dataclass(frozen=True)
class Evidence:
    """The results of all confirmed sweeps of a store for each update rule."""

    counted: "list[RuleComparison]"
    left_out: "list[RuleComparison]"


def evidence(
    store: Annotated[
        str | None, Option("URI of an MLflow store (default: the store in the runs folder)")
    ] = None,
    *,
    runs_dir: RunsDir = Path("runs"),
) -> Evidence:
    """List each update rule's improvement in all confirmed sweeps. Excluded sweeps are listed
    with the reason.

    Raises:
        ConfigError: the address contains a password.
        StorageError: there is no such store, or it cannot be read.
    """
    from dashboards.evidence import collect_comparisons
    from dashboards.sources.mlflow import read_sweeps

    check_address(store, "command line, STORE")
    uri = tracking_uri(TrackingConfig(uri=store), runs_dir)
    connect(uri, records=False)  # fails if the store is missing; reading would create it
    return Evidence(*collect_comparisons(read_sweeps(uri)))


def _evidence_fields(found: Evidence) -> dict[str, Any]:
    return {
        "settings": [asdict(row) for row in found.counted],
        "left_out": [asdict(row) for row in found.left_out],
    }


def _show_evidence(found: Evidence) -> None:
    from dashboards.evidence import HEADINGS

    if found.counted:
        print_table(HEADINGS, [row.cells for row in found.counted])
    else:
        print("no sweep in this store compares rules on fresh seeds: run `sweep confirm NAME`")
    for row in found.left_out:
        print(f"excluded: {row.rule or 'every rule'} of {row.sweep} ({row.left_out})")


@dataclass(frozen=True)
class Uploaded:
    """A sweep that was sent to MLflow."""

    sweep: SweepRecord
    report: Path


def upload(name: SweepName, *, runs_dir: RunsDir = Path("runs")) -> Uploaded:
    """Send an offline sweep to MLflow, and write its report. Records that were sent before are not
    sent again.

    Raises:
        MissingError: there is no such sweep.
        NameInUseError: the sweep is running.
        StorageError: MLflow cannot be reached.
    """
    from sweep.tracking.upload import upload_sweep

    sweep = open_sweep(runs_dir, name)
    return Uploaded(sweep, upload_sweep(sweep))


def _show_upload(uploaded: Uploaded) -> None:
    print(f"report: {uploaded.report}")
    print(f"MLflow: {uploaded.sweep.command('ui')}")


def ui(
    name: SweepName,
    *,
    runs_dir: RunsDir = Path("runs"),
    port: Annotated[Port, Option("port on 127.0.0.1")] = 5000,
) -> int:
    """Open the MLflow UI on this machine. It shows the sweep's trials; Ctrl-C stops the server.

    Returns:
        The exit status of the server.

    Raises:
        MissingError: there is no such sweep, or it ran offline.
    """
    sweep = open_sweep(runs_dir, name)
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
    return serve(uri, port, page, f"sweep {folder.name}")


REPORT = Command(
    function=report, show=_show_report, fields=_report_fields, example="sweep report quickstart"
)
EVIDENCE = Command(
    function=evidence, show=_show_evidence, fields=_evidence_fields, example="sweep evidence --json"
)
UPLOAD = Command(function=upload, show=_show_upload, fields=None, example="sweep upload quickstart")
UI = printing_command(ui, "sweep ui quickstart --port 5001")
