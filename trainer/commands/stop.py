"""``trainer stop``: ask a run to stop after its current step."""

import argparse

from loptune.errors import ConfigError, MissingError
from loptune.files import storage_error
from loptune.run_names import command_line, lock_owner, resume_command
from loptune.terminal.arguments import add_runs_dir
from trainer.commands.start import SWEEP_FILE, existing_run
from trainer.run_folder import RunFolder


def add_stop(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer stop``."""
    parser.add_argument("name", help="name of the run, see `trainer ls`")
    add_runs_dir(parser)


def carry_out_stop(arguments: argparse.Namespace) -> int:
    """Carry out ``trainer stop``: write the file that the run looks for after every step.

    Unlike a signal, the file sets no time limit under torchrun or `accelerate launch`, and it works
    from any machine that sees the run's folder.

    Raises:
        ConfigError: the run is a trial of a sweep.
        MissingError: no such run, or it is not running.
        StorageError: the folder cannot be written.
    """
    run_dir = existing_run(arguments.runs_dir, arguments.name)
    sweep_dir = run_dir.resolve().parent.parent
    if (sweep_dir / SWEEP_FILE).is_file():
        stop = command_line("sweep", "stop", sweep_dir.name, runs_dir=sweep_dir.parent)
        raise ConfigError(
            f"{run_dir.name} is a trial of the sweep {sweep_dir.name}",
            str(run_dir),
            f"stop all trials: {stop}",
            code="trial-of-a-sweep",
        )
    again = resume_command(run_dir.name, run_dir.parent)
    process = lock_owner(run_dir)
    if process is None:
        raise MissingError(
            f"{run_dir.name} is not running",
            str(run_dir / "lock"),
            f"to resume it: {again}",
            code="not-running",
        )
    try:
        RunFolder(run_dir).stop.touch()
    except OSError as error:
        raise storage_error("write the stop file", RunFolder(run_dir).stop, error) from error
    print(f"{run_dir.name} ({process}) stops after its current step and saves a checkpoint")
    print(f"to resume it then: {again}")
    return 0
