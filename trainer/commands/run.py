"""One training run from the command line: set up, train, report the outcome."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from loptune.errors import INTERRUPTED, DivergedError, StorageError, warning_text
from loptune.files import read_records
from loptune.run_names import command_line, resume_command
from loptune.terminal.interrupt import graceful_stop, shutdown_warning
from loptune.terminal.progress_lines import Progress, zero_variance_warning
from trainer.algorithm.update import learning_rate
from trainer.checkpoint.on_disk import steps_on_disk
from trainer.config.schema import TrainConfig, load_config
from trainer.loop import Trainer, total_steps
from trainer.parallel.device import free_memory
from trainer.parallel.ranks import Parallel
from trainer.parallel.strategy import make_parallel
from trainer.planning.advice import advise_data
from trainer.run_folder import RunFolder
from trainer.time_budget import TimeBudget, trained_hours, with_more_hours
from trainer.tracking.inputs import change_tags
from trainer.tracking.mlflow_store import prepare_store, tracking_uri
from trainer.tracking.tracker import NullTracker, Tracker
from trainer.types import RunContext

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a run on one rank."""

    trainer: Trainer
    done: bool  # whether the last step was trained and its checkpoint written
    recorded: bool  # whether MLflow has the complete run
    diverged: DivergedError | None
    out_of_time: bool = False  # whether the run stopped because max_hours was used up


def run_training(config: TrainConfig, name: str, runs_dir: Path, resume: bool) -> RunOutcome:
    """Train in ``runs_dir/name``. Only rank 0 writes files and shows progress.

    Raises:
        UserError: the run cannot start or continue. Divergence, and Ctrl-C during training, are
            outcomes instead.
    """
    free_memory()  # memory of an earlier run in this process
    parallel = make_parallel(config)
    name = parallel.gather([name])[0]  # a time-based name may differ between ranks
    context = RunContext(
        run_dir=runs_dir / name,
        runs_dir=runs_dir,
        experiment=config.tracking.experiment or "trainer",
        run_name=name,
        tags={**config.tracking.tags, **change_tags(runs_dir / name)},
    )
    progress = Progress() if parallel.is_main else None
    saved = RunFolder(context.run_dir).config
    # read now: `_build` overwrites this file with the new configuration
    previous = load_config(str(saved)) if resume and saved.is_file() else config
    try:
        trainer = _build(config, context, parallel, progress)
    except BaseException:
        if progress is not None:
            progress.close()
        raise
    status = "FAILED"
    diverged = None
    # only one rank watches the time, because all ranks stop if one requests it
    budget = TimeBudget(config.max_hours if parallel.is_main else None)
    try:
        if resume:
            step = trainer.resume()
            if progress is not None:
                progress.note(f"resuming {name} at step {step} of {trainer.total_steps}")
                warnings = [
                    schedule_warning(trainer, previous),
                    shutdown_warning(_slowest_step(RunFolder(context.run_dir))),
                ]
                for warning in filter(None, warnings):
                    progress.note(warning)
            trained = trained_hours(RunFolder(context.run_dir), step)
            budget = TimeBudget(budget.hours, trained)
        if progress is not None:
            progress.begin(trainer.total_steps, trainer.step)
        with (
            graceful_stop(trainer.request_stop, announce=parallel.is_main),
            budget.watch(trainer.request_stop),
        ):
            trainer.train()
        status = "FINISHED" if trainer.done else "KILLED"
    except DivergedError as error:
        diverged = error
    except KeyboardInterrupt:
        status = "KILLED"
    finally:
        if progress is not None:
            progress.close()
        recorded = trainer.close(status)
    out_of_time = budget.spent and status == "KILLED"
    return RunOutcome(trainer, status == "FINISHED", recorded, diverged, out_of_time)


def report_outcome(outcome: RunOutcome) -> int:
    """Print the outcome on rank 0 and return the exit code.

    Exit codes: 0 done, 1 diverged, 130 interrupted. If all ranks were stopped together, ranks other
    than 0 return 0. After an interruption the last line is the command that resumes the run.

    Raises:
        StorageError: the run is done, but its record in MLflow is incomplete.
    """
    trainer = outcome.trainer
    context = outcome.trainer.context
    run_dir = context.run_dir
    folder = RunFolder(run_dir)
    step = trainer.step
    done = outcome.done
    if outcome.diverged is not None:
        lines = [
            f"error: {outcome.diverged}",
            f"where: {run_dir}",
            "next:  lower optim.lr, or raise algorithm.kl_coef",
        ]
        code = 1
        stream = sys.stderr
    elif not done:
        saved = max(steps_on_disk(folder.checkpoints), default=None)
        command = resume_command(context.run_name, context.runs_dir, trainer.parallel.world_size)
        kept = f"saved at step {saved}; to resume:"
        if saved is None:
            kept = "no checkpoint was saved; to start over:"
            if step > 0:
                command = f"{command} --start-over"
        why = ""
        hours = trainer.config.max_hours
        if outcome.out_of_time and hours is not None:
            why = f": max_hours={hours:g} is used up"
            command = with_more_hours(command, hours)
        lines = [f"stopped at step {step} of {trainer.total_steps}{why}; {kept}", command]
        # A launcher ends all ranks as soon as one fails, before rank 0 has closed its record. If
        # the ranks stopped together, only rank 0 reports that the run was interrupted.
        together = trainer.stopped and not trainer.parallel.is_main
        code = 0 if together else INTERRUPTED
        stream = sys.stdout
    else:
        model = folder.checkpoint(step)
        lines = [f"model:    {model}", f"metrics:  {folder.metrics}"]
        code = 0
        stream = sys.stdout
    if trainer.parallel.is_main:
        if done and trainer.zero_variance_steps == step:
            steps = "the only step" if step == 1 else f"all {step} steps"
            _logger.warning("%s", zero_variance_warning(steps))
        print("\n".join(lines), file=stream, flush=True)
    if done and not outcome.recorded:
        raise StorageError(
            "the record in MLflow is incomplete; all data is in the run folder",
            str(run_dir),
            command_line("trainer", "upload", str(run_dir)),
            code="record-incomplete",
        )
    return code


def schedule_warning(trainer: Trainer, previous: TrainConfig) -> str | None:
    """Return a warning if the learning rate schedule now ends at a different step than before;
    otherwise, or if the schedule is constant, None.
    """
    optim = trainer.config.optim
    total = trainer.total_steps
    planned = total_steps(previous, len(trainer.problems))
    if optim.lr_schedule == "constant" or planned == total:
        return None
    new = learning_rate(optim, trainer.step, total)
    old = max(0.0, learning_rate(optim, min(trainer.step, planned), planned))
    return warning_text(
        f"the {optim.lr_schedule} schedule now ends at step {total} instead of {planned}, "
        f"so the learning rate of step {trainer.step + 1} is {new:.3g} instead of {old:.3g}",
        "max_steps, epochs, optim.lr_schedule",
        "for a separate schedule, start a new run with model.name_or_path set to the last "
        "checkpoint",
    )


def _slowest_step(folder: RunFolder) -> float:
    """Return the longest recorded training step [s], or 0 before the first one."""
    seconds = [record.get("time/step") or 0.0 for record in read_records(folder.metrics)]
    return max(seconds, default=0.0)


def _build(
    config: TrainConfig, context: RunContext, parallel: Parallel, progress: Progress | None
) -> Trainer:
    """Build the trainer and open its tracker last, so that a run that fails to start leaves no
    record.
    """
    trainer = Trainer(config, context, NullTracker(), progress, parallel)
    if not parallel.is_main:
        return trainer
    context_length = getattr(trainer.models.causal_lm.config, "max_position_embeddings", None)
    for advice in advise_data(config, trainer.problems, trainer.evaluation_sets, context_length):
        _logger.warning("%s", advice)
    try:
        if not config.tracking.offline:
            prepare_store(tracking_uri(config.tracking, context.runs_dir))
        trainer.tracker = Tracker(config, context)
    except BaseException:
        trainer.close("FAILED")
        raise
    return trainer
