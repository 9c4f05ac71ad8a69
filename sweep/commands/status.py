"""``sweep status``, ``stop``, ``clean``, ``ls`` and ``study``: commands that read sweep folders,
stop a sweep, or clean up.
"""

import argparse
import contextlib
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from dashboards.trial import TrialRecord
from loptune.errors import ConfigError, UserError
from loptune.files import format_bytes
from loptune.run_names import lock_owner
from loptune.terminal.arguments import Commands, add_json, add_runs_dir
from loptune.terminal.commands import Command, Option, add_command
from loptune.terminal.table import duration, number, print_json, print_table
from sweep.commands.arguments import add_named
from sweep.driver.guard import dead_scratch, end_leftovers
from sweep.record.best import BestWithCaveats, arm_lines, choose_best
from sweep.record.folder import all_sweeps, existing_sweep, newest_sweep, read_spec, request_stop
from sweep.record.identical_trials import identical_trials
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.record.trial_table import print_trials, table_row
from sweep.search.history import best, outcome
from sweep.views.time_left import seconds_left


def add_commands(commands: Commands) -> None:
    """Add ``sweep status``, ``stop``, ``clean``, ``ls`` and ``study``."""
    add_command(commands, STATUS)

    add_named(commands, "stop", _stop, "stop a running sweep at the next training step")

    clean = commands.add_parser(
        "clean", help="remove files and processes of killed sweeps from this machine"
    )
    add_runs_dir(clean)
    clean.set_defaults(command=_clean)

    ls = commands.add_parser("ls", help="list sweeps")
    add_runs_dir(ls)
    add_json(ls)
    ls.set_defaults(command=_ls)

    study = add_named(
        commands, "study", _study, "export a sweep as an Optuna study, for optuna-dashboard"
    )
    study.add_argument(
        "--output",
        type=Path,
        help="new SQLite file to write (default: study.db in the sweep's folder, written again)",
    )


@dataclass(frozen=True)
class SweepStatus:
    """The progress of a sweep."""

    sweep: SweepRecord
    running: str | None  # the process that runs it
    trials: list[TrialRecord]
    chosen: BestWithCaveats
    seconds_left: dict[str, float]  # of running trials
    sweep_seconds_left: float | None


def status(
    name: Annotated[
        str | None, Option("name of the sweep, see `sweep ls` (default: the newest sweep)")
    ] = None,
    *,
    runs_dir: Annotated[Path, Option("folder that contains all runs", is_path=True)] = Path("runs"),
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
    """Return the progress as the keys of ``--json``."""
    best = found.chosen.best
    return {
        "name": found.sweep.folder.name,
        "running": found.running is not None,
        "planned": found.sweep.planned,
        "best": best and vars(best),
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
    for line in identical_trials(sweep):
        print(f"warning: {line}")
    if best := found.chosen.text(sweep.spec.objective):
        print(best)
    if found.running is None and ended < sweep.planned:
        print(f"to resume: {sweep.command('resume')}")


def _stop(arguments: argparse.Namespace) -> int:
    folder = existing_sweep(arguments.runs_dir, arguments.name)
    by = lock_owner(folder.root)
    if by is None:
        print(f"sweep {folder.name} is not running")
        return 0
    # A file, not a signal: it reaches a driver and ranks on other machines too.
    request_stop(folder)
    print(f"asked {by} to stop after the current training step")
    return 0


def _clean(arguments: argparse.Namespace) -> int:
    for scratch, root in list(dead_scratch()):
        held = lock_owner(root) is not None  # by a newer driver
        ended = 0 if held else end_leftovers(root, wait_s=0)
        size = 0
        with contextlib.suppress(FileNotFoundError):  # a guard may remove it concurrently
            for path in scratch.rglob("*"):
                size += path.lstat().st_size
        shutil.rmtree(scratch, ignore_errors=True)
        print(f"freed {format_bytes(size)}: {scratch}, of {root}; processes ended: {ended}")
    for folder in all_sweeps(arguments.runs_dir):
        if lock_owner(folder.root) is None:
            for path in [*folder.root.glob("reach-*"), *folder.root.glob(folder.credentials.name)]:
                path.unlink()
                print(path)
    return 0


def _study(arguments: argparse.Namespace) -> int:
    from sweep.search.study import write_study  # Optuna takes a second to import

    sweep = open_sweep(arguments.runs_dir, arguments.name)
    output: Path = arguments.output or sweep.folder.root / "study.db"
    if arguments.output:
        _check_new_file(output)
    write_study(sweep.spec, sweep.configurations, output)
    print(f"optuna-dashboard sqlite:///{output}")
    return 0


def _check_new_file(output: Path) -> None:
    """Refuse an output that exists, which may be another study, or whose folder does not exist."""
    if output.exists():
        raise ConfigError(
            f"{output} exists already",
            "--output",
            "name a new file, or remove this one first",
            code="output-exists",
        )
    if not output.parent.is_dir():
        raise ConfigError(
            f"the folder {output.parent} does not exist",
            "--output",
            f"mkdir -p {output.parent}",
            code="no-output-folder",
        )


@dataclass(frozen=True)
class _Listed:
    name: str
    state: str  # running, done, stopped, or an error
    ended: int = 0
    planned: int = 0
    best: float | None = None  # best score of the search


def _ls(arguments: argparse.Namespace) -> int:
    listings = []
    for folder in all_sweeps(arguments.runs_dir):
        try:
            sweep = SweepRecord(read_spec(folder), folder)
            trials = sweep.trials()
            winner = best(sweep.configurations, sweep.spec.seeds, sweep.spec.objective)
            running = lock_owner(folder.root)
        except UserError as error:
            listings.append(_Listed(folder.name, error.what))
            continue
        ended = sum(trial.ended for trial in trials)
        state = "stopped"
        if running:
            state = "running"
        elif ended >= sweep.planned:
            state = "done"
        score = None
        if winner is not None:
            score = outcome(winner, sweep.spec.seeds).score
        listings.append(_Listed(folder.name, state, ended, sweep.planned, score))
    if arguments.json:
        print_json([asdict(listed) for listed in listings])
    elif listings:
        rows = []
        for each in listings:
            trials_text = f"{each.ended}/{each.planned}"
            rows.append([each.name, each.state, trials_text, number(each.best)])
        print_table(["name", "state", "trials", "best"], rows)
    else:
        print(f"no sweeps in {arguments.runs_dir}")
    return 0


STATUS = Command(
    function=status, show=show_status, fields=status_fields, example="sweep status quickstart"
)
