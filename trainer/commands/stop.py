"""``trainer stop``: ask a run to stop after its current step."""

from dataclasses import dataclass
from pathlib import Path

from loptune.errors import ConfigError, MissingError
from loptune.files import storage_error
from loptune.run_names import command_line, lock_owner, resume_command
from loptune.terminal.commands import Command, RunsDir
from trainer.commands.arguments import RunName
from trainer.commands.start import SWEEP_FILE, existing_run
from trainer.run_folder import RunFolder


@dataclass(frozen=True)
class StoppingRun:
    """A run that was asked to stop."""

    name: str
    by: str  # process that trains the run
    resume_command: str


def stop(name: RunName, *, runs_dir: RunsDir = Path("runs")) -> StoppingRun:
    """Stop a run after its current step; it can be resumed. The run saves a checkpoint first.

    The request is a file that the run looks for after every step. Unlike a signal, it does not
    start the shutdown timeout of torchrun or `accelerate launch`, and it works from any machine
    that sees the run's folder.

    Raises:
        ConfigError: the run is a trial of a sweep.
        MissingError: there is no such run, or it is not running.
        StorageError: the folder cannot be written.
    """
    run_dir = existing_run(runs_dir, name)
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
    return StoppingRun(run_dir.name, process, again)


def _show_stop(stopping: StoppingRun) -> None:
    print(f"{stopping.name} ({stopping.by}) stops after its current step and saves a checkpoint")
    print(f"to resume it later: {stopping.resume_command}")


COMMANDS = {"stop": Command(function=stop, show=_show_stop, fields=None, example="trainer stop ar")}
