"""``sweep status``, ``stop`` and ``ls``: what the folders of sweeps tell, and a word to the running one."""

import argparse
from dataclasses import asdict, dataclass

from sweep.commands.arguments import add_named
from sweep.record.folder import all_sweeps, command, existing_sweep, holder, read_spec, request_stop
from sweep.record.summary import best_configuration, caveats, planned_trials, trial_rows
from sweep.record.table import print_json, print_trials, rows_as_json
from trainer.commands.arguments import Commands, add_json, add_runs_dir
from trainer.commands.table import number, print_table
from trainer.errors import UserError


def add_status(commands: Commands) -> None:
    """``sweep status``."""
    status = add_named(commands, "status", "the trials of a sweep")
    add_json(status)
    status.set_defaults(command=_status)


def add_stop(commands: Commands) -> None:
    """``sweep stop``."""
    stop = add_named(commands, "stop", "stop a running sweep at the next training step")
    stop.set_defaults(command=_stop)


def add_ls(commands: Commands) -> None:
    """``sweep ls``."""
    ls = commands.add_parser("ls", help="all sweeps")
    add_runs_dir(ls)
    add_json(ls)
    ls.set_defaults(command=_ls)


def _status(arguments: argparse.Namespace) -> int:
    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec, by = read_spec(folder), holder(folder)
    rows = trial_rows(spec, folder, running=by is not None)
    best = best_configuration(spec, folder)
    if arguments.json:
        print_json(
            {
                "name": folder.name,
                "running": by is not None,
                "planned": planned_trials(spec),
                "best": best and vars(best),
                "trials": rows_as_json(rows),
            }
        )
        return 0
    print_trials(rows)
    ended = sum(row.ended for row in rows)
    state = f"run by {by}" if by else "not running"
    print(f"\n{folder.name}: {ended} of {planned_trials(spec)} trials ended, {state}")
    if best is not None:
        print(best.text(spec.objective))
        for line in caveats(spec, folder):
            print(f"       {line}")
    if by is None and ended < planned_trials(spec):
        print(f"to go on: {command('resume', folder)}")
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    folder = existing_sweep(arguments.runs_dir, arguments.name)
    by = holder(folder)
    if by is None:
        print(f"sweep {folder.name} is not running")
        return 0
    # A file, not a signal: it reaches a driver and ranks on other machines too.
    request_stop(folder)
    print(f"asked {by} to stop after the current training step")
    return 0


@dataclass(frozen=True)
class _Listed:
    name: str
    state: str  # running, done, stopped, or what is wrong with it
    ended: int = 0
    planned: int = 0
    best: float | None = None


def _ls(arguments: argparse.Namespace) -> int:
    found = []
    for folder in all_sweeps(arguments.runs_dir):
        try:
            spec = read_spec(folder)
            rows = trial_rows(spec, folder)
            best = best_configuration(spec, folder)
        except UserError as error:
            found.append(_Listed(folder.name, error.what))
            continue
        ended = sum(row.ended for row in rows)
        planned = planned_trials(spec)
        state = "running" if holder(folder) else "done" if ended >= planned else "stopped"
        found.append(_Listed(folder.name, state, ended, planned, best.score if best else None))
    if arguments.json:
        print_json([asdict(listed) for listed in found])
    elif found:
        print_table(
            ["name", "state", "trials", "best"],
            [[row.name, row.state, f"{row.ended}/{row.planned}", number(row.best)] for row in found],
        )
    else:
        print(f"no sweeps in {arguments.runs_dir}")
    return 0
