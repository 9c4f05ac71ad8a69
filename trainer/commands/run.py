"""One training run from the command line: set up, train, report how it ended."""

import sys
from pathlib import Path
from typing import TextIO

from trainer.commands.interrupt import graceful_stop
from trainer.commands.progress import Progress
from trainer.config.schema import TrainConfig
from trainer.errors import INTERRUPTED, DivergedError, StorageError
from trainer.loop import Trainer
from trainer.parallel.ranks import Parallel, leave_ranks
from trainer.parallel.start import make_parallel
from trainer.tracking.mlflow_store import prepare_store, tracking_uri
from trainer.tracking.tracker import NullTracker, Tracker
from trainer.types import RunContext


def run_training(config: TrainConfig, name: str, runs_dir: Path, resume: bool) -> int:
    """Train in ``runs_dir/name`` and return the exit code.

    0 done, 1 diverged, 130 interrupted: the last line is then the command that resumes the run. Of several ranks
    only the first writes and speaks.
    """
    parallel = make_parallel(config)
    name = parallel.gather([name])[0]  # a name made of the time differs between ranks
    context = RunContext(
        run_dir=runs_dir / name,
        runs_dir=runs_dir,
        experiment=config.tracking.experiment or "trainer",
        run_name=name,
        tags={"loptune.run": name, **config.tracking.tags},
    )
    if parallel.is_main and not config.tracking.offline:
        prepare_store(tracking_uri(config.tracking, runs_dir))
    tracker = Tracker(config, context) if parallel.is_main else NullTracker()
    try:
        trainer = Trainer(config, context, tracker, parallel=parallel)
    except BaseException:
        tracker.close("FAILED")
        raise
    progress = Progress(trainer.total_steps) if parallel.is_main else None
    trainer.progress = progress
    status, diverged, at_once = "FAILED", False, False
    try:
        if resume:
            step = trainer.resume()
            _say(parallel, f"resuming {name} at step {step} of {trainer.total_steps}")
        with graceful_stop(lambda: setattr(trainer, "stop_requested", True), announce=parallel.is_main):
            trainer.train()
        status = "FINISHED" if trainer.done else "KILLED"
    except DivergedError as error:
        lines = (
            f"error: {error}",
            f"where: {context.run_dir}",
            "next:  lower optim.lr, or raise algorithm.kl_coef",
        )
        _say(parallel, *lines, file=sys.stderr)
        diverged = True
    except KeyboardInterrupt:
        status, at_once = "KILLED", True
    finally:
        if progress is not None:
            progress.close()
        recorded = trainer.close(status)
    if not at_once:  # a rank that stops amid a step cannot take leave of the others
        leave_ranks()
    if diverged:
        return 1
    if status == "KILLED":
        saved = context.run_dir / "config.yaml"
        launch = f"torchrun --nproc-per-node {parallel.world_size} -m " if parallel.world_size > 1 else ""
        resume_command = f"{launch}trainer run {saved} --name {name} --runs-dir {runs_dir} --resume"
        _say(parallel, f"stopped at step {trainer.step} of {trainer.total_steps}; to go on:", resume_command)
        return INTERRUPTED
    model = context.run_dir / "checkpoints" / f"step-{trainer.step}"
    _say(parallel, f"model:    {model}", f"metrics:  {context.run_dir / 'metrics.jsonl'}")
    if not recorded:
        raise StorageError(
            "MLflow did not take the whole history; it is safe in the run folder",
            str(context.run_dir),
            f"trainer upload {context.run_dir}",
        )
    return 0


def _say(parallel: Parallel, *lines: str, file: TextIO | None = None) -> None:
    if parallel.is_main:
        print("\n".join(lines), file=file, flush=True)
