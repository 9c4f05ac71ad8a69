"""`trainer ls`, `status`, `ui` and `upload`, based on the files in the runs folder."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from loptune.errors import MissingError, UserError, printable
from loptune.files import read_records
from loptune.run_names import command_line, lock_owner, raise_if_locked, resume_command, run_path
from loptune.terminal.arguments import add_json, add_runs_dir, count, port
from loptune.terminal.table import number, print_json, print_table
from loptune.terminal.ui import serve
from trainer.checkpoint.on_disk import steps_on_disk
from trainer.commands.start import SWEEP_FILE, existing_run, rule_of
from trainer.config.schema import TrainConfig, load_config
from trainer.run_folder import RunFolder
from trainer.tracking.mlflow_store import connect, tracking_uri
from trainer.tracking.tracker import upload
from trainer.tracking.uploading import TrackingState

_EVALUATIONS = 5  # evaluations shown by `trainer status`


@dataclass(frozen=True)
class RunSummary:
    """Summary of one run."""

    name: str
    state: str  # running, done, stopped, failed, or the error that prevents reading it
    step: int = 0
    last_step: int | None = None  # None if epochs determine the last step
    accuracy: float | None = None  # of the last evaluation
    best: float | None = None
    rule: str = ""

    @property
    def progress(self) -> str:
        """Progress as ``step/last_step``, such as ``20/50``."""
        return f"{self.step}/{self.last_step}" if self.last_step else str(self.step)


def add_ls(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer ls``."""
    add_runs_dir(parser)
    add_json(parser)


def add_status(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer status``."""
    add_runs_dir(parser)
    add_json(parser)
    parser.add_argument(
        "name", nargs="?", help="name of the run, see `trainer ls` (default: the newest run)"
    )
    text = "show the last N recorded completions of training and evaluation"
    parser.add_argument("--completions", type=count, default=0, metavar="N", help=text)


def add_ui(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer ui``."""
    add_runs_dir(parser)
    parser.add_argument("name", nargs="?", help="run to open (default: the table of runs)")
    parser.add_argument("--port", type=port, default=5000, help="port on 127.0.0.1 (default: 5000)")


def add_upload(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer upload``."""
    parser.add_argument("run", help="name or folder of the run")
    add_runs_dir(parser)


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


def carry_out_ls(arguments: argparse.Namespace) -> int:
    """Carry out ``trainer ls``."""
    runs = []
    for folder in _run_folders(arguments.runs_dir):
        if not folder.evaluation.is_file():
            runs.append(summary(folder.root))
    if arguments.json:
        print_json([asdict(run) for run in runs])
    elif runs:
        rows = []
        for run in runs:
            accuracy = number(run.accuracy)
            best = number(run.best)
            rows.append([run.name, run.state, run.progress, accuracy, best, run.rule])
        print_table(["name", "state", "step", "accuracy", "best", "rule"], rows)
    else:
        print(f"no runs in {arguments.runs_dir}; to start one: trainer run tiny_kk")
    return 0


def carry_out_status(arguments: argparse.Namespace) -> int:
    """Carry out ``trainer status``."""
    name = arguments.name or _newest_run(arguments.runs_dir)
    folder = existing_run(arguments.runs_dir, name)
    run = summary(folder)
    files = RunFolder(folder)
    steps = steps_on_disk(files.checkpoints)[::-1]
    records = read_records(files.metrics)
    evaluations = [record for record in records if "eval/accuracy" in record][-_EVALUATIONS:]
    if arguments.json:
        print_json({**asdict(run), "checkpoints": steps, "evaluations": evaluations})
        return 0
    by = lock_owner(folder)
    state = run.state
    if by:
        state += f" by {by}"
    print(f"{run.name}: {state}, step {run.progress}, {run.rule}")
    if evaluations:
        metrics = ["accuracy", "reward", "completion_length"]
        rows = []
        for record in evaluations:
            values = [number(record.get(f"eval/{metric}")) for metric in metrics]
            rows.append([str(record["step"]), *values])
        print_table(["step", *metrics], rows)
    shown = []
    if arguments.completions:
        shown = read_records(files.completions)[-arguments.completions :]
    for row in shown:
        _print_completion(row)
    print(f"checkpoints: {' '.join(f'step-{step}' for step in steps) or 'none'}")
    if run.state == "done":
        evaluate = command_line("trainer", "evaluate", str(folder))
        ui = command_line("trainer", "ui", run.name, runs_dir=arguments.runs_dir)
        print(f"next:        {evaluate}, {ui}")
    elif run.state != "running":
        print(f"next:        {resume_command(run.name, arguments.runs_dir)}")
    return 0


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


def carry_out_upload(arguments: argparse.Namespace) -> int:
    """Carry out ``trainer upload``."""
    run_dir = run_path(arguments.run, arguments.runs_dir)
    raise_if_locked(run_dir)  # a running process uploads by itself
    print(f"uploaded {run_dir} as MLflow run {upload(run_dir)}")
    return 0


def carry_out_ui(arguments: argparse.Namespace) -> int:
    """Open the MLflow UI at one run or at the table of runs."""
    name: str | None = arguments.name
    config = TrainConfig()
    of_run = ""  # end of the page's address
    shown = "all runs"
    if name:
        folder = existing_run(arguments.runs_dir, name)
        config = load_config(str(RunFolder(folder).config))
        of_run = f"/{_run_id(folder)}"
        shown = f"run {name}"
    uri = tracking_uri(config.tracking, arguments.runs_dir)

    def page() -> str:
        experiment = connect(uri).get_experiment_by_name(config.tracking.experiment or "trainer")
        if experiment:
            return f"/#/experiments/{experiment.experiment_id}/runs{of_run}"
        return ""

    named = [name] if name else []
    again = command_line("trainer", "ui", *named, runs_dir=arguments.runs_dir)
    return serve(uri, arguments.port, page, shown, again)


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
