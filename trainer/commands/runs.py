"""`trainer ls`, `status`, `ui` and `upload`, based on the files in the runs folder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console
from rich.text import Text

from loptune.errors import MissingError, UserError, printable
from loptune.files import read_records
from loptune.run_names import command_line, lock_owner, raise_if_locked, resume_command, run_path
from loptune.section import Port
from loptune.terminal.commands import Command, Option, RunsDir, printing_command
from loptune.terminal.table import number, print_table
from loptune.terminal.ui import serve
from trainer.checkpoint.on_disk import steps_on_disk
from trainer.commands.start import SWEEP_FILE, existing_run, rule_of
from trainer.config.schema import TrainConfig, load_config
from trainer.run_folder import RunFolder
from trainer.tracking.mlflow_store import connect, tracking_uri
from trainer.tracking.tracker import upload as upload_run
from trainer.tracking.uploading import TrackingState

_EVALUATIONS = 5  # evaluations shown by `trainer status`


@dataclass(frozen=True)
class RunSummary:
    """Summary of one run."""

    name: str
    state: str  # running, done, stopped, failed, or the error that prevents reading it
    step: int = 0
    last_step: int | None = None  # None if epochs determine the last step
    accuracy: float | None = None  # accuracy of the last evaluation
    best: float | None = None  # highest accuracy of an evaluation
    rule: str = ""

    @property
    def progress(self) -> str:
        """Progress as ``step/last_step``, such as ``20/50``."""
        return f"{self.step}/{self.last_step}" if self.last_step else str(self.step)


def summary(folder: Path) -> RunSummary:
    """Summarize a run from its files. If they cannot be read, ``state`` is the error."""
    try:
        config = load_config(str(RunFolder(folder).config))
        records = read_records(RunFolder(folder).metrics)
        state = _state(folder, records)
    except UserError as error:
        return RunSummary(folder.name, error.what)
    step = max((int(record.get("step", 0)) for record in records), default=0)
    evaluations = [record["eval/accuracy"] for record in records if "eval/accuracy" in record]
    return RunSummary(
        name=folder.name,
        state=state,
        step=step,
        last_step=config.max_steps,
        accuracy=evaluations[-1] if evaluations else None,
        best=max(evaluations, default=None),
        rule=rule_of(config),
    )


def ls(*, runs_dir: RunsDir = Path("runs")) -> list[RunSummary]:
    """List runs. Each line has a run's state, its step, the accuracy of its last and of its best
    evaluation, and its update rule.
    """
    runs = []
    for folder in _run_folders(runs_dir):
        if not folder.evaluation.is_file():
            runs.append(summary(folder.root))
    return runs


def _show_list(runs: list[RunSummary]) -> None:
    if not runs:
        print("no runs here; to start one: trainer run tiny_kk")
        return
    rows = []
    for run in runs:
        accuracy = number(run.accuracy)
        best = number(run.best)
        rows.append([run.name, run.state, run.progress, accuracy, best, run.rule])
    print_table(["name", "state", "step", "accuracy", "best", "rule"], rows)


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The progress of one run."""

    run: RunSummary
    by: str | None  # process that trains the run, or None
    checkpoints: list[int]  # steps, oldest first
    evaluations: list[dict[str, Any]]  # the last records with an evaluation
    completions: list[dict[str, Any]]  # last recorded completions
    next_commands: list[str]


def status(
    name: Annotated[
        str | None, Option("name of the run, see `trainer ls` (default: the newest run)")
    ] = None,
    *,
    runs_dir: RunsDir = Path("runs"),
    completions: Annotated[
        int,
        Option("show the last N recorded completions of training and evaluation", metavar="N"),
        Field(ge=0),
    ] = 0,
) -> RunStatus:
    """Show a run's progress. Prints its last evaluations, its checkpoints and the next command.

    Raises:
        MissingError: there is no such run.
        StorageError: a record is damaged.
    """
    folder = existing_run(runs_dir, name or _newest_run(runs_dir))
    run = summary(folder)
    files = RunFolder(folder)
    records = read_records(files.metrics)
    next_commands = []
    if run.state == "done":
        next_commands = [
            command_line("trainer", "evaluate", str(folder)),
            command_line("trainer", "ui", run.name, runs_dir=runs_dir),
        ]
    elif run.state != "running":
        next_commands = [resume_command(run.name, runs_dir)]
    evaluations = [record for record in records if "eval/accuracy" in record]
    return RunStatus(
        run=run,
        by=lock_owner(folder),
        checkpoints=steps_on_disk(files.checkpoints)[::-1],
        evaluations=evaluations[-_EVALUATIONS:],
        completions=read_records(files.completions)[-completions:] if completions else [],
        next_commands=next_commands,
    )


def _status_fields(found: RunStatus) -> dict[str, Any]:
    return {**asdict(found.run), "checkpoints": found.checkpoints, "evaluations": found.evaluations}


def _show_status(found: RunStatus) -> None:
    run = found.run
    state = f"{run.state} ({found.by})" if found.by else run.state
    print(f"{run.name}: {state}, step {run.progress}, {run.rule}")
    if found.evaluations:
        metrics = ["accuracy", "reward", "completion_length"]
        rows = []
        for record in found.evaluations:
            values = [number(record.get(f"eval/{metric}")) for metric in metrics]
            rows.append([str(record["step"]), *values])
        print_table(["step", *metrics], rows)
    for row in found.completions:
        _print_completion(row)
    steps = " ".join(f"step-{step}" for step in found.checkpoints)
    print(f"checkpoints: {steps or 'none'}")
    if found.next_commands:
        print(f"next:        {', '.join(found.next_commands)}")


def _run_folders(runs_dir: Path) -> list[RunFolder]:
    """Return the folders of single runs and evaluations, by name."""
    folders = []
    for path in sorted(runs_dir.glob("*/")):
        folder = RunFolder(path)
        if folder.config.is_file() and not (path / SWEEP_FILE).is_file():
            folders.append(folder)
    return folders


def _newest_run(runs_dir: Path) -> str:
    """Return the name of the run that was started last.

    Raises:
        MissingError: there is no run.
    """
    runs = _run_folders(runs_dir)
    if not runs:
        raise MissingError(
            "there are no runs yet", str(runs_dir), "trainer run tiny_kk", code="no-runs"
        )
    return max(runs, key=lambda folder: folder.config.stat().st_mtime).root.name


def _print_completion(row: Mapping[str, Any]) -> None:
    """Print a recorded completion below its prompt, each under a heading and in its own color."""
    console = Console(highlight=False)
    reward = number(row["reward"])
    heading = f"\nstep {row['step']}, {row['set']}, reward {reward}, answer {row['answer']}"
    console.print(Text(printable(heading), style="bold"), soft_wrap=True)
    for name, style in (("prompt", "dim"), ("completion", "cyan")):
        console.print(Text(f"{name}:", style="bold"))
        indented = "\n".join(f"    {line}" for line in printable(row[name]).split("\n"))
        console.print(Text(indented, style=style), soft_wrap=True)


@dataclass(frozen=True)
class UploadedRun:
    """A run that was sent to MLflow."""

    folder: Path
    run_id: str  # id of the run in MLflow


def upload(
    run: Annotated[str, Option("name or folder of the run")], *, runs_dir: RunsDir = Path("runs")
) -> UploadedRun:
    """Send an offline run to MLflow. Records already sent are not sent again.

    Raises:
        MissingError: there is no such run.
        NameInUseError: the run is being trained.
        StorageError: MLflow cannot be reached.
    """
    folder = run_path(run, runs_dir)
    raise_if_locked(folder)  # a running process uploads its own record
    return UploadedRun(folder, upload_run(folder))


def ui(
    name: Annotated[str | None, Option("run to open (default: the table of runs)")] = None,
    *,
    runs_dir: RunsDir = Path("runs"),
    port: Annotated[Port, Option("port on 127.0.0.1")] = 5000,
) -> int:
    """Open MLflow on this machine. It shows one run or the table of runs; Ctrl-C stops the server.

    Returns:
        Exit status.

    Raises:
        MissingError: there is no such run, or it is not in MLflow.
        ConfigError: the port cannot be used.
        StorageError: the store cannot be reached.
    """
    config = TrainConfig()
    of_run = ""  # suffix of the page's address
    shown = "all runs"
    if name:
        folder = existing_run(runs_dir, name)
        config = load_config(str(RunFolder(folder).config))
        of_run = f"/{_run_id(folder)}"
        shown = f"run {name}"
    uri = tracking_uri(config.tracking, runs_dir)

    def page() -> str:
        client = connect(uri, records=False)
        experiment = client.get_experiment_by_name(config.tracking.experiment or "trainer")
        if experiment:
            return f"/#/experiments/{experiment.experiment_id}/runs{of_run}"
        return ""

    return serve(uri, port, page, shown)


def _run_id(folder: Path) -> str:
    state = TrackingState.load(folder)
    if state is None or state.run_id is None:
        raise MissingError(
            f"run {folder.name} is not in MLflow",
            str(folder),
            command_line("trainer", "upload", str(folder)),
            code="not-in-mlflow",
        )
    return state.run_id


def _state(folder: Path, records: list[dict[str, Any]]) -> str:
    if lock_owner(folder) is not None:
        return "running"
    if records and "final/accuracy" in records[-1]:
        return "done"
    state = TrackingState.load(folder)
    if state is not None and state.status == "FAILED":
        return "failed"
    return "stopped"


COMMANDS = {
    "ls": Command(
        function=ls,
        show=_show_list,
        fields=lambda runs: [asdict(run) for run in runs],
        example="trainer ls --runs-dir /shared/runs",
    ),
    "status": Command(
        function=status, show=_show_status, fields=_status_fields, example="trainer status ar"
    ),
    "upload": Command(
        function=upload,
        show=lambda sent: print(f"uploaded {sent.folder} as MLflow run {sent.run_id}"),
        fields=None,
        example="trainer upload ar",
    ),
    "ui": printing_command(ui, "trainer ui ar --port 5001"),
}
