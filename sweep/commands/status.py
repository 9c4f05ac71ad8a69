"""``sweep status``, ``stop``, ``clean``, ``ls`` and ``study``: commands that read sweep folders,
stop a sweep, or clean up.
"""

import argparse
import contextlib
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from loptune.errors import ConfigError, UserError
from loptune.files import format_bytes
from loptune.run_names import lock_owner
from loptune.terminal.arguments import Commands, add_json, add_runs_dir
from loptune.terminal.table import duration, number, print_json, print_table
from sweep.commands.arguments import add_named
from sweep.driver.guard import dead_scratch, end_leftovers
from sweep.record.best import arm_lines, choose_best
from sweep.record.folder import all_sweeps, existing_sweep, newest_sweep, read_spec, request_stop
from sweep.record.identical_trials import identical_trials
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.record.trial_table import print_trials, table_row
from sweep.search.history import best, outcome
from sweep.views.time_left import seconds_left


def add_commands(commands: Commands) -> None:
    """Add ``sweep status``, ``stop``, ``clean``, ``ls`` and ``study``."""
    add_json(add_named(commands, "status", _status, "show a sweep's trials", optional=True))

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


def _status(arguments: argparse.Namespace) -> int:
    sweep = open_sweep(arguments.runs_dir, arguments.name or newest_sweep(arguments.runs_dir))
    folder = sweep.folder
    planned = sweep.planned
    by = lock_owner(folder.root)
    trials = sweep.trials(running=by is not None)
    chosen = choose_best(sweep)
    left, all_left = seconds_left(sweep, trials)
    if arguments.json:
        print_json(
            {
                "name": folder.name,
                "running": by is not None,
                "planned": planned,
                "best": chosen.best and vars(chosen.best),
                "caveats": chosen.caveats,
                "next": chosen.next_step and vars(chosen.next_step),
                "trials": [table_row(trial) for trial in trials],
                "seconds_left": left,
                "sweep_seconds_left": all_left,
            }
        )
        return 0
    points = {str(each.number): each.parameters for each in sweep.configurations}
    print_trials(trials, sweep.spec, points)
    ended = sum(trial.ended for trial in trials)
    state = f"run by {by}" if by else "not running"
    print(f"\n{folder.name}: {ended} of {planned} trials ended, {state}")
    for line in arm_lines(sweep):
        print(line)
    for trial, seconds in left.items():
        print(f"{trial}: about {duration(seconds)} left")
    if all_left is not None:
        print(f"sweep: about {duration(all_left)} left")
    for line in identical_trials(sweep):
        print(f"warning: {line}")
    if best := chosen.text(sweep.spec.objective):
        print(best)
    if by is None and ended < planned:
        print(f"to resume: {sweep.command('resume')}")
    return 0


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
