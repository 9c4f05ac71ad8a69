"""One training run from the command line: set up, train, report how it ended."""

import sys
from pathlib import Path

from trainer.config import TrainConfig
from trainer.errors import DivergedError
from trainer.interrupt import graceful_stop
from trainer.loop import Trainer
from trainer.progress import Progress
from trainer.tracking import Tracker, prepare_store, tracking_uri
from trainer.types import RunContext


def run_training(config: TrainConfig, name: str, runs_dir: Path, resume: bool) -> int:
    """Train in ``runs_dir/name`` and return the exit code.

    0 done, 1 diverged, 130 interrupted: the last line is then the command that resumes the run.
    """
    context = RunContext(
        run_dir=runs_dir / name,
        runs_dir=runs_dir,
        experiment=config.tracking.experiment or "trainer",
        run_name=name,
        tags={"loptune.run": name, **config.tracking.tags},
    )
    if not config.tracking.offline:
        prepare_store(tracking_uri(config.tracking, runs_dir))
    tracker = Tracker(config, context)
    try:
        trainer = Trainer(config, context, tracker)
    except BaseException:
        tracker.close("FAILED")
        raise
    progress = Progress(trainer.total_steps)
    trainer.progress = progress
    status = "FAILED"
    try:
        if resume:
            print(f"resuming {name} at step {trainer.resume()} of {trainer.total_steps}", flush=True)
        with graceful_stop(lambda: setattr(trainer, "stop_requested", True)):
            trainer.train()
        status = "FINISHED" if trainer.done else "KILLED"
    except DivergedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(f"where: {context.run_dir}", file=sys.stderr)
        print("next:  lower optim.lr, or raise algorithm.kl_coef", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        status = "KILLED"
    finally:
        progress.close()
        trainer.close(status)
    if status == "KILLED":
        saved = context.run_dir / "config.yaml"
        print(f"stopped at step {trainer.step} of {trainer.total_steps}; to go on:")
        print(f"trainer run {saved} --name {name} --runs-dir {runs_dir} --resume", flush=True)
        return 130
    print(f"model:    {context.run_dir / 'checkpoints' / f'step-{trainer.step}'}")
    print(f"metrics:  {context.run_dir / 'metrics.jsonl'}")
    return 0
