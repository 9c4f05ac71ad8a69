"""Timing a training step here and now, for the forecast of a plan that no earlier sweep has measured."""

import os
import tempfile
from typing import NamedTuple

from sweep.space.spec import SweepSpec
from trainer.config.schema import apply_overrides
from trainer.errors import UserError
from trainer.policy.architectures import local_folder, parameter_count
from trainer.problems.rows import is_file_source
from trainer.types import RunContext

_MOST_PARAMETERS = 10**7  # a step of a larger model may take minutes on a CPU


class StepTime(NamedTuple):
    """Seconds of a training step and the steps of a trial; or why nothing was measured."""

    seconds: float | None = None
    steps: int | None = None
    lacking: str = ""


def time_step(spec: SweepSpec) -> StepTime:
    """Train two steps of the space's base configuration in a temporary folder, and take the second's time."""
    if lacking := _hindrance(spec):
        return StepTime(lacking=lacking)
    threads = spec.resources.cpus_per_worker
    os.environ["OMP_NUM_THREADS"] = str(threads)  # as a trial has it; read when torch is imported
    import torch

    from trainer.loop import Trainer

    torch.set_num_threads(threads)
    config = apply_overrides(spec.base, {"evaluation.at_start": False, "tracking.offline": True})
    try:
        with tempfile.TemporaryDirectory(prefix="loptune-plan-") as scratch:
            trainer = Trainer(config, RunContext.of(f"{scratch}/plan"))
            try:
                times = [trainer.training_step()["time/step"] for _ in range(min(2, trainer.total_steps))]
                return StepTime(times[-1], trainer.total_steps)
            finally:
                trainer.close()
    except UserError as error:
        return StepTime(lacking=error.what)


def _hindrance(spec: SweepSpec) -> str:
    """Why no step can be timed on this machine in seconds; empty where one can."""
    base, resources, name = spec.base, spec.resources, spec.base.model.name_or_path
    sources = [*base.data.train, *base.evaluation.sets.values()]
    if resources.gpus_per_trial:
        return "a trial needs GPUs"
    if resources.workers_per_trial > 1 or base.rollout.engine == "vllm" or base.rollout.uses_servers:
        return "a trial is more than one process"
    if not all(one.source == "generated" or is_file_source(one) for one in sources):
        return "its data come from the hub"
    if not local_folder(name).is_dir():
        return f"{name} is not in a folder of this machine"
    small = (parameter_count(name) or _MOST_PARAMETERS + 1) <= _MOST_PARAMETERS
    return "" if small else "a step of this model may take minutes"
