"""What one rank does in the test of its memory: trials one after another, as a warm rank of a sweep
runs them.
"""

import gc
import weakref
from pathlib import Path
from typing import Any

from torch import Tensor

from sweep.programs.base import Assignment
from sweep.programs.loptune import LoptuneProgram
from sweep.trials.worker import RankWorker
from tests.invariants.ranks import be_a_rank
from tests.invariants.train_job import small_config
from trainer.parallel.device import free_memory
from trainer.types import RunContext

TRIALS = 2
FROZEN = gc.get_freeze_count()  # Python 3.12 starts with some objects frozen


def live_bytes() -> int:
    """Return the bytes of all tensors of this process that Python objects hold."""
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type != "meta"]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def run_trial(worker: RankWorker, assignment: Assignment) -> dict[str, Any]:
    assignment.context.run_dir.mkdir(parents=True, exist_ok=True)  # which a sweep makes
    worker.build(LoptuneProgram(config=assignment.config), assignment)
    trainer: Any = worker._run
    worker.train_until_evaluation()
    models = trainer.models
    things = {"trainer": trainer, "optimizer": models.optimizer, "engine": trainer.engine}
    things |= {name: vars(models)[name] for name in ("causal_lm", "policy", "reference")}
    things["parameter"] = next(models.causal_lm.parameters())
    references = {name: weakref.ref(thing) for name, thing in things.items()}
    assert gc.get_freeze_count() <= FROZEN, "what is frozen is not among the objects that gc lists"
    training = live_bytes()
    del trainer, models, things
    worker.close("FINISHED")
    free_memory()  # as the next trial's start does
    alive = [name for name, reference in references.items() if reference() is not None]
    return {"training": training, "left": live_bytes(), "alive": alive}


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    once = {
        "max_steps": 1,
        "evaluation.every_steps": 1,
        "evaluation.at_start": False,
        "tracking.offline": True,
    }
    worker = RankWorker()
    results = {}
    for name, overrides in job["cases"].items():
        config = small_config(Path(job["model"]), once | overrides)
        runs = [folder / f"{name}-{number}" for number in range(TRIALS)]
        contexts = [RunContext(run, folder, "test", "", shares_process=True) for run in runs]
        trials = [
            Assignment(context.run_dir.name, config, context, folder / "stop")
            for context in contexts
        ]
        results[name] = [run_trial(worker, trial) for trial in trials]
    return results


if __name__ == "__main__":
    be_a_rank(work)
