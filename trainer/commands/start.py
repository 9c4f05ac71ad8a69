"""``trainer run`` and ``trainer resume`` before training: run name, run folder and validation.

Configuration errors are reported before the slow import of torch.
"""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from loptune.errors import INTERRUPTED, ConfigError, MissingError
from loptune.files import read_records
from loptune.run_names import check_name, command_line, lock_folder, resume_command, run_path
from loptune.section import Count
from loptune.terminal.commands import AcceptChanges, Option, RunsDir, printing_command
from loptune.terminal.interrupt import defer_interrupt
from loptune.terminal.lasting_output import lasting_output
from loptune.terminal.main import rank, world_size
from trainer.checkpoint.on_disk import (
    check_complete,
    intact_checkpoints,
    raise_if_weights_only,
    start_over,
    steps_on_disk,
)
from trainer.commands.arguments import Offline, Overrides, RunName, Spec
from trainer.config.extends import find_spec
from trainer.config.schema import TrainConfig, dotted_values, load_config, save_config, value_of
from trainer.config.variants import rule_label
from trainer.planning.advice import advise
from trainer.preflight import check_model, check_sources, check_tracking
from trainer.run_folder import RunFolder
from trainer.threads import limit_spinning
from trainer.time_budget import trained_hours, with_more_hours
from trainer.tracking.inputs import check_inputs, input_files, record_inputs
from trainer.tracking.writers import check_installed

_logger = logging.getLogger(__name__)

# keys that may change when a run is resumed
_RESUMABLE = (
    "max_steps",
    "max_hours",
    "epochs",
    "tracking",
    "checkpoint.keep_last",
    "checkpoint.keep_best",
    "rollout.vllm.",
    # where and how the run computes: any number of ranks can read a checkpoint
    "parallel.",
    "optim.tokens_per_microbatch",
    "model.compile",
    "model.packing",
    "model.load_check",
)
_LOOK = "inspect without training"
# file that marks the folder of a sweep
SWEEP_FILE = "space.lock.yaml"


@dataclass(frozen=True, kw_only=True)
class Start:
    """A request to start or resume a run."""

    spec: str  # preset name or YAML file, with or without :VARIANT
    overrides: Sequence[str] | Mapping[str, Any]
    runs_dir: Path
    # run name; None: spec name and time, or on resume the name of the folder that contains the spec
    name: str | None = None
    resume: bool = False
    start_over: bool = False  # resume from step 0
    accept_changes: bool = False  # resume even if data, reward or rule files have changed


def run(
    spec: Spec,
    overrides: Overrides = (),
    *,
    name: Annotated[
        str | None, Option("name of the run (default: the spec's name and the time)")
    ] = None,
    dry_run: Annotated[
        bool, Option("show a prompt, a scored completion, memory and steps", group=_LOOK)
    ] = False,
    completion: Annotated[
        list[str] | None,
        Option(
            "like --dry-run, and also score this text as a completion of the problem shown; may "
            "be repeated",
            group=_LOOK,
            metavar="TEXT",
            repeated=True,
        ),
    ] = None,
    sample: Annotated[
        Count | None,
        Option(
            "like --dry-run, and also sample completions of N training problems, and report how "
            "many groups would give a learning signal",
            group=_LOOK,
            metavar="N",
        ),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    offline: Offline = False,
) -> int:
    """Train a policy; record it in runs/NAME and MLflow. Ctrl-C saves a checkpoint and prints the
    command that resumes the run.

    Returns:
        Exit status.

    Raises:
        UserError: the configuration, its data or its model are wrong, or the run fails.
    """
    start = Start(
        spec=spec, overrides=_with_offline(overrides, offline), runs_dir=runs_dir, name=name
    )
    if not (dry_run or sample or completion):
        return start_run(start)
    config = load_config(start.spec, start.overrides)
    check_start(config, start)
    check_model(config)
    print(f"{spec}: loading {config.model.name_or_path}", flush=True)
    with defer_interrupt():
        from trainer.commands.dry_run import dry_run as look  # torch takes seconds to import

    look(config, sample, completion or ())
    return 0


def resume(
    name: RunName,
    overrides: Overrides = (),
    *,
    accept_changes: AcceptChanges = False,
    start_over: Annotated[
        bool, Option("restart from step 0; keep the old record in earlier-N")
    ] = False,
    runs_dir: RunsDir = Path("runs"),
    offline: Offline = False,
) -> int:
    """Resume a stopped or killed run. It continues from its newest intact checkpoint as if it had
    never stopped.

    Returns:
        Exit status.

    Raises:
        UserError: there is no such run, a setting may not change, or the run fails.
    """
    saved = RunFolder(existing_run(runs_dir, name)).config
    return start_run(
        Start(
            spec=str(saved),
            overrides=_with_offline(overrides, offline),
            runs_dir=runs_dir,
            resume=True,
            start_over=start_over,
            accept_changes=accept_changes,
        )
    )


@lasting_output()
def start_run(start: Start) -> int:
    """Train and return the exit code. If the start fails before the first record, no folder is left
    behind. Training continues even if its output can no longer be written.

    Raises:
        ConfigError: invalid configuration or name, or a resume with settings that may not change.
        UserError: any other error that stops the run.
    """
    config = load_config(start.spec, start.overrides)
    name = run_name(start)
    run_dir = start.runs_dir / name
    resumes = start.resume and not start.start_over
    is_done = resumes and _is_done(config, run_dir)
    if rank() > 0:  # rank 0 checks, locks and writes the run folder
        return 0 if is_done else _train(config, name, start)
    _check_folder(config, run_dir, start)
    changes = check_inputs(run_dir, "run", start.accept_changes) if resumes else []
    if is_done:
        more = f"{resume_command(name, start.runs_dir, world_size())} max_steps=N"
        print(
            f"{name} has already finished its last step, {config.max_steps}; to train longer: "
            f"{more}",
            flush=True,
        )
        return 0
    if resumes:
        _check_steps_left(config, name, start)
    check_start(config, start)
    is_new = not run_dir.exists()
    with lock_folder(run_dir, create=is_new):
        RunFolder(run_dir).stop.unlink(missing_ok=True)  # left by an earlier process of this run
        try:
            _prepare_folder(config, name, start, changes)
            limit_spinning()
            check_tracking(config, start.runs_dir)
            for advice in advise(config):
                _logger.info("%s", advice)
            return _train(config, name, start)
        except KeyboardInterrupt:
            if _has_history(run_dir):
                raise
            print("stopped before the first record: nothing was saved", flush=True)
            return INTERRUPTED
        finally:
            if is_new and not _has_history(run_dir):
                shutil.rmtree(run_dir, ignore_errors=True)


def _check_steps_left(config: TrainConfig, name: str, start: Start) -> None:
    """Raise if a run to resume has exceeded ``max_steps`` or spent its time budget."""
    folder = RunFolder(start.runs_dir / name)
    trained = max(steps_on_disk(folder.checkpoints), default=0)
    if config.max_steps and config.max_steps < trained:
        raise ConfigError(
            f"{name} has already trained {trained} steps, but max_steps is {config.max_steps}",
            "command line, key max_steps",
            f"raise max_steps, or use an earlier checkpoint: {folder.checkpoints}/step-N",
            code="already-trained",
        )
    again = resume_command(name, start.runs_dir, world_size())
    _check_time_left(config, folder, trained, again)


def _prepare_folder(config: TrainConfig, name: str, start: Start, changes: Sequence[str]) -> None:
    """Write the run's settings and the hashes of its input files into its folder, and print what
    starts.
    """
    run_dir = start.runs_dir / name
    folder = RunFolder(run_dir)
    if start.start_over:
        earlier = start_over(run_dir)
        if earlier is not None:
            print(
                f"starting over; moved the earlier checkpoints and record to {earlier}", flush=True
            )
    # on resume, the configuration is saved later, after all ranks have read the old one
    if not start.resume:
        save_config(config, folder.config)
        save_config(config, folder.first_config)
    record_inputs(run_dir, input_files([config]), changes)
    verb = "resuming" if start.resume else "run"
    print(f"{verb} {name}: {config.model.name_or_path}, {rule_of(config)}", flush=True)


def check_start(config: TrainConfig, start: Start) -> None:
    """Check the inputs that need neither torch nor the run folder: files and reporting packages.

    Raises:
        ConfigError, MissingError: the run could not start.
    """
    check_sources(config, find_spec(start.spec).path)
    check_installed(config)


def _with_offline(overrides: Sequence[str], offline: bool) -> list[str]:
    return [*overrides, "tracking.offline=true"] if offline else list(overrides)


def check_no_sweep(folder: Path) -> None:
    """Raise if the folder belongs to a sweep.

    Raises:
        MissingError: the folder belongs to a sweep; the error suggests `sweep status` or a trial.
    """
    if (folder / SWEEP_FILE).is_file():
        raise MissingError(
            f"{folder.name} is a sweep",
            str(folder),
            f"{command_line('sweep', 'status', folder.name, runs_dir=folder.parent)}, or pass one "
            f"of its trials: {folder}/trials/ID",
            code="is-a-sweep",
        )


def existing_run(runs_dir: Path, name: str) -> Path:
    """Return the folder of a run given by name, or of a trial given by path.

    Raises:
        MissingError: unknown run, or a sweep.
    """
    folder = run_path(name, runs_dir)
    check_no_sweep(folder)
    if not RunFolder(folder).config.is_file():
        raise MissingError(f"no run {name}", str(folder), "see `trainer ls`", code="no-such-run")
    return folder


def rule_of(config: TrainConfig) -> str:
    """Return the display name of a run's update rule, such as ``grpo + AR``."""
    return rule_label(partial(value_of, config))


def run_name(start: Start) -> str:
    """Return the requested run name, or else the spec name with the time, or on resume the folder
    name.

    Raises:
        ConfigError: unknown preset, invalid name, or on resume neither a name nor a spec in a run
            folder.
    """
    file = find_spec(start.spec)
    path = file.path
    in_run_folder = (
        path == RunFolder(path.parent).config
        and path.parent.parent.resolve() == start.runs_dir.resolve()
    )
    if start.name is None and start.resume and not in_run_folder:
        raise ConfigError(
            "resume needs the run's name",
            start.spec,
            "pass name=NAME, or the config.yaml in the run folder",
            code="no-run-name",
        )
    default = path.parent.name if start.resume else f"{file.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return check_name(default if start.name is None else start.name)


def _check_folder(config: TrainConfig, run_dir: Path, start: Start) -> None:
    if start.resume:
        folder = RunFolder(existing_run(start.runs_dir, run_dir.name))
        _check_same_run(config, load_config(str(folder.first_config)))
        if not start.start_over:
            steps = steps_on_disk(folder.checkpoints)
            if steps:
                raise_if_weights_only(folder.checkpoint(steps[0]))
            check_complete(
                run_dir, 1, f"{resume_command(run_dir.name, start.runs_dir)} --start-over"
            )
    elif (run_dir / SWEEP_FILE).exists():
        raise ConfigError(
            f"{run_dir.name} is a sweep", str(run_dir), "choose another --name", code="is-a-sweep"
        )
    elif _has_history(run_dir):
        command = resume_command(run_dir.name, start.runs_dir)
        raise ConfigError(
            f"run {run_dir.name} already exists",
            str(run_dir),
            f"{command}, or choose another --name",
            code="run-exists",
        )


def _is_done(config: TrainConfig, run_dir: Path) -> bool:
    """Return whether the last step was trained, evaluated and saved."""
    folder = RunFolder(run_dir)
    if config.max_steps not in steps_on_disk(folder.checkpoints):
        return False  # skip the hashing: the run continues and verifies its checkpoint then
    if not any("final/accuracy" in record for record in read_records(folder.metrics)):
        return False
    newest = next(intact_checkpoints(folder.checkpoints), None)
    return newest is not None and newest.name == f"step-{config.max_steps}"


def _check_time_left(config: TrainConfig, folder: RunFolder, step: int, resume: str) -> None:
    """Raise if the time budget of a run to resume is spent.

    Raises:
        ConfigError: the budget is spent; the error suggests a command with a larger one.
    """
    trained = trained_hours(folder, step)
    if config.max_hours is not None and trained >= config.max_hours:
        raise ConfigError(
            f"{folder.root.name} has trained for {trained:.2g} hours, and max_hours is "
            f"{config.max_hours:g}",
            "command line, key max_hours",
            with_more_hours(resume, config.max_hours),
            "max_hours",
            code="time-budget-spent",
        )


def _check_same_run(config: TrainConfig, saved: TrainConfig) -> None:
    first = dotted_values(saved.model_dump(mode="json"))
    for key, value in dotted_values(config.model_dump(mode="json")).items():
        if not key.startswith(_RESUMABLE) and value != first.get(key):
            raise ConfigError(
                f"{key} is {value!r}, but the run was started with {first.get(key)!r}",
                key,
                "restore the old value, or start a new run with --name",
                code="setting-changed",
            )


def _has_history(run_dir: Path) -> bool:
    # a failed start leaves only a configuration, which may be overwritten
    folder = RunFolder(run_dir)
    has_metrics = folder.metrics.is_file() and folder.metrics.stat().st_size > 0
    return has_metrics or folder.checkpoints.is_dir()


def _train(config: TrainConfig, name: str, start: Start) -> int:
    check_model(config)
    with defer_interrupt():
        # torch takes seconds to import
        from trainer.commands.run import report_outcome, run_training

    return report_outcome(run_training(config, name, start.runs_dir, resume=start.resume))


COMMANDS = {
    "run": printing_command(run, "trainer run tiny_kk algorithm.ar_alpha=0.3 --name ar"),
    "resume": printing_command(resume, "trainer resume ar max_steps=200"),
}
