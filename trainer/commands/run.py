"""One training run from the command line: set up, train, report how it ended."""

import sys
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.files import steps_on_disk
from trainer.config.schema import TrainConfig
from trainer.errors import INTERRUPTED, DivergedError, StorageError
from trainer.loop import Trainer
from trainer.parallel.ranks import Parallel, leave_ranks
from trainer.parallel.start import make_parallel
from trainer.planning.advice import advise_data
from trainer.shell.interrupt import graceful_stop
from trainer.shell.progress import Progress, silent_warning
from trainer.shell.run_folder import resume_command
from trainer.tracking.inputs import change_tags
from trainer.tracking.mlflow_store import prepare_store, tracking_uri
from trainer.tracking.tracker import NullTracker, Tracker
from trainer.types import RunContext


@dataclass(frozen=True)
class RunOutcome:
    """The end of a run on one rank."""

    context: RunContext
    step: int
    total_steps: int
    done: bool
    recorded: bool  # whether MLflow has the whole run
    diverged: DivergedError | None
    rank: int
    world_size: int
    silent: bool  # whether no step had completions of one prompt with different rewards


def run_training(config: TrainConfig, name: str, runs_dir: Path, resume: bool) -> RunOutcome:
    """Train in ``runs_dir/name``. Of several ranks only the first writes and shows progress."""
    parallel = make_parallel(config)
    name = parallel.gather([name])[0]  # a name made of the time differs between ranks
    context = RunContext(
        run_dir=runs_dir / name,
        runs_dir=runs_dir,
        experiment=config.tracking.experiment or "trainer",
        run_name=name,
        tags={"loptune.run": name, **config.tracking.tags, **change_tags(runs_dir / name)},
    )
    progress = Progress() if parallel.is_main else None
    try:
        trainer = _build(config, context, parallel, progress)
    except BaseException:
        if progress is not None:
            progress.close()
        raise
    status, diverged, mid_step = "FAILED", None, False
    try:
        if resume:
            step = trainer.resume()
            if progress is not None:
                progress.resumed(name, step, trainer.total_steps)
        if progress is not None:
            progress.begin(trainer.total_steps, trainer.step)
        with graceful_stop(trainer.request_stop, announce=parallel.is_main):
            trainer.train()
        status = "FINISHED" if trainer.done else "KILLED"
    except DivergedError as error:
        diverged = error
    except KeyboardInterrupt:
        status, mid_step = "KILLED", True
    finally:
        if progress is not None:
            progress.close()
        recorded = trainer.close(status)
    if not mid_step:  # a rank that stops in the middle of a step cannot meet the others again
        leave_ranks()
    return RunOutcome(
        context,
        trainer.step,
        trainer.total_steps,
        status == "FINISHED",
        recorded,
        diverged,
        parallel.rank,
        parallel.world_size,
        trainer.step > 0 and trainer.silent_steps == trainer.step,
    )


def report_outcome(outcome: RunOutcome) -> int:
    """Print how a run ended, on the first rank, and return the exit code.

    0 done, 1 diverged, 130 interrupted: the last line is then the command that resumes the run.

    Raises:
        StorageError: the run is done, but MLflow does not have all of it.
    """
    run_dir, name = outcome.context.run_dir, outcome.context.run_name
    if outcome.diverged is not None:
        lines = [
            f"error: {outcome.diverged}",
            f"where: {run_dir}",
            "next:  lower optim.lr, or raise algorithm.kl_coef",
        ]
        code, stream = 1, sys.stderr
    elif not outcome.done:
        saved = max(steps_on_disk(run_dir / "checkpoints"), default=None)
        kept = "nothing was saved; to begin again:" if saved is None else f"saved at step {saved}; to go on:"
        command = resume_command(name, outcome.context.runs_dir, outcome.world_size)
        lines = [
            f"stopped at step {outcome.step} of {outcome.total_steps}; {kept}",
            f"{command} --start-over" if saved is None and outcome.step else command,
        ]
        code, stream = INTERRUPTED, sys.stdout
    else:
        model = run_dir / "checkpoints" / f"step-{outcome.step}"
        lines = [f"model:    {model}", f"metrics:  {run_dir / 'metrics.jsonl'}"]
        code, stream = 0, sys.stdout
    if outcome.rank == 0 and outcome.silent and outcome.done:
        steps = "its only step" if outcome.step == 1 else f"all {outcome.step} steps"
        print(silent_warning(steps), file=sys.stderr, flush=True)
    if outcome.rank == 0:
        print("\n".join(lines), file=stream, flush=True)
    if outcome.done and not outcome.recorded:
        raise StorageError(
            "MLflow did not take the whole history; it is safe in the run folder",
            str(run_dir),
            f"trainer upload {run_dir}",
        )
    return code


def _build(config: TrainConfig, context: RunContext, parallel: Parallel, progress: Progress | None) -> Trainer:
    """The trainer with its tracker, which is opened last: what cannot start leaves no record."""
    trainer = Trainer(config, context, NullTracker(), progress, parallel)
    if not parallel.is_main:
        return trainer
    context_length = getattr(trainer.models.causal_lm.config, "max_position_embeddings", None)
    for advice in advise_data(config, trainer.problems, trainer.evaluation_sets, context_length):
        print(advice, file=sys.stderr, flush=True)
    try:
        if not config.tracking.offline:
            prepare_store(tracking_uri(config.tracking, context.runs_dir))
        trainer.tracker = Tracker(config, context)
    except BaseException:
        trainer.close("FAILED")
        raise
    return trainer
