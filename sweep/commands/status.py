"""``sweep status``, ``stop``, ``clean``, ``ls`` and ``study``: commands that read sweep folders,
stop a sweep, or clean up.
"""

import contextlib
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from dashboards.trial import TrialRecord
from loptune.errors import ConfigError, UserError
from loptune.files import format_bytes
from loptune.run_names import command_line, lock_owner
from loptune.sqlite_url import sqlite_url
from loptune.temporary import remove_leftovers
from loptune.terminal.arguments import Commands
from loptune.terminal.commands import Command, Option, RunsDir, add_command
from loptune.terminal.table import duration, number, print_table
from sweep.commands.arguments import SweepName
from sweep.driver.guard import dead_scratch, end_leftovers
from sweep.record.best import BestWithCaveats, arm_lines, choose_best, front_of
from sweep.record.folder import all_sweeps, existing_sweep, newest_sweep, read_spec, request_stop
from sweep.record.identical_trials import identical_trials
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.record.trial_table import print_trials, table_row
from sweep.search.history import best, outcome
from sweep.views.time_left import seconds_left


def add_commands(commands: Commands) -> None:
    """Add ``sweep status``, ``stop``, ``clean``, ``ls`` and ``study``."""
    for command in (STATUS, STOP, CLEAN, LS, STUDY):
        add_command(commands, command)


@dataclass(frozen=True)
class SweepStatus:
    """The progress of a sweep."""

    sweep: SweepRecord
    running: str | None  # the process that runs the sweep; None if it is not running
    trials: list[TrialRecord]
    chosen: BestWithCaveats
    seconds_left: dict[str, float]  # running trial -> seconds left
    sweep_seconds_left: float | None


def status(
    name: Annotated[
        str | None, Option("name of the sweep, see `sweep ls` (default: the newest sweep)")
    ] = None,
    *,
    runs_dir: RunsDir = Path("runs"),
) -> SweepStatus:
    """Show a sweep's trials. Prints their scores, the best configuration with its caveats, and the
    time left.

    Raises:
        MissingError: there is no such sweep.
        StorageError: a record is damaged.
    """
    sweep = open_sweep(runs_dir, name or newest_sweep(runs_dir))
    by = lock_owner(sweep.folder.root)
    trials = sweep.trials(running=by is not None)
    left, all_left = seconds_left(sweep, trials)
    return SweepStatus(sweep, by, trials, choose_best(sweep), left, all_left)


def status_fields(found: SweepStatus) -> dict[str, Any]:
    """Return the progress with the keys of ``--json``."""
    best = found.chosen.best
    return {
        "name": found.sweep.folder.name,
        "running": found.running is not None,
        "planned": found.sweep.planned,
        "best": best and vars(best),
        "front": front_of(found.sweep),
        "caveats": found.chosen.caveats,
        "next": found.chosen.next_step and vars(found.chosen.next_step),
        "trials": [table_row(trial) for trial in found.trials],
        "seconds_left": found.seconds_left,
        "sweep_seconds_left": found.sweep_seconds_left,
    }


def show_status(found: SweepStatus) -> None:
    """Print the progress of a sweep."""
    sweep = found.sweep
    points = {str(each.number): each.parameters for each in sweep.configurations}
    print_trials(found.trials, sweep.spec, points)
    ended = sum(trial.ended for trial in found.trials)
    state = f"run by {found.running}" if found.running else "not running"
    print(f"\n{sweep.folder.name}: {ended} of {sweep.planned} trials ended, {state}")
    for line in arm_lines(sweep):
        print(line)
    for trial, seconds in found.seconds_left.items():
        print(f"{trial}: about {duration(seconds)} left")
    if found.sweep_seconds_left is not None:
        print(f"sweep: about {duration(found.sweep_seconds_left)} left")
    if members := front_of(sweep):
        second = sweep.spec.objective.second
        named = ", ".join(f"#{member}" for member in members)
        print(
            f"Pareto front of {sweep.spec.objective.name} and {second and second.metric}: {named}"
        )
    for line in identical_trials(sweep):
        print(f"warning: {line}")
    if best := found.chosen.text(sweep.spec.objective):
        print(best)
    if found.running is None and ended < sweep.planned:
        print(f"to resume: {sweep.command('resume')}")


@dataclass(frozen=True)
class Stopping:
    """A sweep that was asked to stop."""

    name: str
    by: str | None  # the process that runs it; None: it is not running


def stop(name: SweepName, *, runs_dir: RunsDir = Path("runs")) -> Stopping:
    """Stop a running sweep at the next training step. Its trials save a checkpoint first, and
    `sweep resume` continues them. This command works on any machine that sees the runs folder.

    Raises:
        MissingError: there is no such sweep.
        StorageError: the request cannot be written to the sweep's folder.
    """
    folder = existing_sweep(runs_dir, name)
    by = lock_owner(folder.root)
    if by is not None:
        # A file, not a signal: it reaches a driver and ranks on other machines too.
        request_stop(folder)
    return Stopping(folder.name, by)


def _show_stop(stopping: Stopping) -> None:
    if stopping.by is None:
        print(f"sweep {stopping.name} is not running")
    else:
        print(f"asked {stopping.by} to stop after the current training step")


@dataclass(frozen=True)
class FreedFolder:
    """A temporary folder of a killed sweep that was removed."""

    folder: Path
    sweep: Path  # folder of the sweep that it belonged to
    size: int  # bytes
    ended: int  # number of the sweep's processes that were still running and were ended


@dataclass(frozen=True)
class Cleaned:
    """Files and processes of killed sweeps that were removed from this machine."""

    folders: list[FreedFolder]
    files: list[Path]


def clean(*, runs_dir: RunsDir = Path("runs")) -> Cleaned:
    """Delete leftover files and end leftover processes of killed sweeps on this machine. Running
    sweeps and recorded results are not touched.
    """
    folders = []
    for scratch, root in list(dead_scratch()):
        held = lock_owner(root) is not None  # locked by a newer driver
        ended = 0 if held else end_leftovers(root, wait_s=0)
        size = 0
        with contextlib.suppress(FileNotFoundError):  # a guard may remove it concurrently
            for path in scratch.rglob("*"):
                size += path.lstat().st_size
        shutil.rmtree(scratch, ignore_errors=True)
        folders.append(FreedFolder(scratch, root, size, ended))
    files = remove_leftovers()
    for folder in all_sweeps(runs_dir):
        if lock_owner(folder.root) is None:
            credentials = folder.credentials.name
            for pattern in ("reach-*", credentials, f".{credentials}.*.new"):
                for path in folder.root.glob(pattern):
                    path.unlink()
                    files.append(path)
    return Cleaned(folders, files)


def _show_cleaned(cleaned: Cleaned) -> None:
    for freed in cleaned.folders:
        size = format_bytes(freed.size)
        print(f"freed {size}: {freed.folder}, of {freed.sweep}; processes ended: {freed.ended}")
    for path in cleaned.files:
        print(path)


def study(
    name: SweepName,
    *,
    runs_dir: RunsDir = Path("runs"),
    output: Annotated[
        Path | None,
        Option(
            "SQLite file to create (default: study.db in the sweep's folder, overwritten)",
            is_path=True,
        ),
    ] = None,
) -> Path:
    """Export a sweep as an Optuna study, for optuna-dashboard. Prints the command that shows it.

    Raises:
        ConfigError: the output exists, its folder does not, or no URL stands for its path.
        MissingError: there is no such sweep.
    """
    from sweep.search.study import write_study  # Optuna takes a second to import

    sweep = open_sweep(runs_dir, name)
    file = output or sweep.folder.root / "study.db"
    if output:
        _check_new_file(output)
    write_study(sweep.spec, sweep.configurations, file)
    return file


def _show_study(file: Path) -> None:
    """Print the command that shows a study."""
    print(command_line("optuna-dashboard", sqlite_url(file)))


def _check_new_file(output: Path) -> None:
    """Reject an output file that exists, because it may be another study, or whose folder is
    missing.

    Raises:
        ConfigError: the file exists, or its folder does not.
    """
    if output.exists():
        raise ConfigError(
            f"{output} exists already",
            "--output",
            "choose a new file, or remove this one first",
            code="output-exists",
        )
    if not output.parent.is_dir():
        raise ConfigError(
            f"the folder {output.parent} does not exist",
            "--output",
            command_line("mkdir", "-p", str(output.parent)),
            code="no-output-folder",
        )


@dataclass(frozen=True)
class ListedSweep:
    """A line of the list of sweeps."""

    name: str
    state: str  # running, done, stopped, or an error
    ended: int = 0
    planned: int = 0
    best: float | None = None  # best score of the search


def ls(*, runs_dir: RunsDir = Path("runs")) -> list[ListedSweep]:
    """List sweeps. Each line has a sweep's state, its trials, and the best score of the search."""
    listed = []
    for folder in all_sweeps(runs_dir):
        try:
            listed.append(_listed(SweepRecord(read_spec(folder), folder)))
        except UserError as error:
            listed.append(ListedSweep(folder.name, error.what))
    return listed


def _listed(sweep: SweepRecord) -> ListedSweep:
    """Return the line of a sweep.

    Raises:
        UserError: a record is damaged.
    """
    ended = sum(trial.ended for trial in sweep.trials())
    winner = best(sweep.configurations, sweep.spec.seeds, sweep.spec.objective)
    state = "stopped"
    if lock_owner(sweep.folder.root):
        state = "running"
    elif ended >= sweep.planned:
        state = "done"
    score = None
    if winner is not None:
        score = outcome(winner, sweep.spec.seeds).score
    return ListedSweep(sweep.folder.name, state, ended, sweep.planned, score)


def _show_list(listed: list[ListedSweep]) -> None:
    if not listed:
        print("no sweeps in this folder: `sweep run quickstart` starts one")
        return
    rows = []
    for each in listed:
        rows.append([each.name, each.state, f"{each.ended}/{each.planned}", number(each.best)])
    print_table(["name", "state", "trials", "best"], rows)


STATUS = Command(
    function=status, show=show_status, fields=status_fields, example="sweep status quickstart"
)
STOP = Command(function=stop, show=_show_stop, fields=None, example="sweep stop quickstart")
CLEAN = Command(function=clean, show=_show_cleaned, fields=None, example="sweep clean")
LS = Command(
    function=ls,
    show=_show_list,
    fields=lambda listed: [asdict(each) for each in listed],
    example="sweep ls --runs-dir /shared/runs",
)
STUDY = Command(function=study, show=_show_study, fields=None, example="sweep study quickstart")
