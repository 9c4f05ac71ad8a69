"""One training run from the command line: set up, train, report how it ended."""

import sys
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint import steps_on_disk
from trainer.commands.interrupt import graceful_stop
from trainer.commands.progress import Progress
from trainer.commands.run_folder import resume_command
from trainer.commands.timing import WITH, WITHOUT, recorded_seconds, table_lines
from trainer.config.advice import advise_data
from trainer.config.schema import TrainConfig
from trainer.errors import INTERRUPTED, DivergedError, StorageError
from trainer.loop import Trainer
from trainer.parallel.ranks import Parallel, leave_ranks
from trainer.parallel.start import make_parallel
from trainer.tracking.mlflow_store import prepare_store, tracking_uri
from trainer.tracking.tracker import NullTracker, Tracker
from trainer.types import RunContext


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended on one rank."""

    context: RunContext
    step: int
    total_steps: int
    done: bool
    recorded: bool  # whether MLflow has the whole run
    diverged: DivergedError | None
    rank: int
    world_size: int
    uses_lopti: bool


def run_training(config: TrainConfig, name: str, runs_dir: Path, resume: bool) -> RunOutcome:
    """Train in ``runs_dir/name``. Of several ranks only the first writes and shows progress."""
    parallel = make_parallel(config)
    name = parallel.gather([name])[0]  # a name made of the time differs between ranks
    context = RunContext(
        run_dir=runs_dir / name,
        runs_dir=runs_dir,
        experiment=config.tracking.experiment or "trainer",
        run_name=name,
        tags={"loptune.run": name, **config.tracking.tags},
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
        config.algorithm.lopti_eta > 0 and config.algorithm.token_filter == "none",
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
        lines = [
            f"stopped at step {outcome.step} of {outcome.total_steps}; {kept}",
            resume_command(name, outcome.context.runs_dir, outcome.world_size),
        ]
        code, stream = INTERRUPTED, sys.stdout
    else:
        model = run_dir / "checkpoints" / f"step-{outcome.step}"
        lines = [f"model:    {model}", f"metrics:  {run_dir / 'metrics.jsonl'}"]
        seconds = recorded_seconds(run_dir / "metrics.jsonl")
        lines += table_lines({WITH if outcome.uses_lopti else WITHOUT: seconds}) if seconds else []
        code, stream = 0, sys.stdout
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
    for advice in advise_data(config, len(trainer.problems), context_length):
        print(advice, file=sys.stderr, flush=True)
    try:
        if not config.tracking.offline:
            prepare_store(tracking_uri(config.tracking, context.runs_dir))
        trainer.tracker = Tracker(config, context)
    except BaseException:
        trainer.close("FAILED")
        raise
    return trainer
