"""Checks of model, data, reward and memory, made once before Ray starts."""

from collections.abc import Sequence

import psutil

from sweep.programs.resources import ResourcesSpec
from trainer.config.schema import TrainConfig
from trainer.parallel.gpus import gpu_bytes
from trainer.planning.memory import GPU_BYTES, Device, Footprint, check_fits, footprint
from trainer.policy.architectures import TINY
from trainer.shell.preflight import check_early


def trial_memory(base: TrainConfig, resources: ResourcesSpec) -> Footprint | None:
    """Estimate the memory of a trial as its base configuration says.

    None where the model's size is not known, and for the built-in tiny model, which takes next to nothing.
    """
    if base.model.name_or_path == TINY:
        return None
    on_gpus = _on_gpus(base, resources)
    device = _gpu(resources) if on_gpus else Device(False, psutil.virtual_memory().total)
    return footprint(base, resources.workers_per_trial, device)


def check_training(
    base: TrainConfig, resources: ResourcesSpec, searched: Sequence[TrainConfig], models: Sequence[str], scores: bool
) -> None:
    """Read the model folders, the tokenizer and every dataset as a trial will.

    A trial that seems too large for its GPUs is warned about, and every own rule of the searched configurations is
    checked on random tensors. With ``scores``, one row is scored; else each trial finds out whether its rewards fit.

    Raises:
        MissingError, ConfigError, RewardError: a trial could not run.
    """
    check_early(base)
    # torch and transformers take seconds to import, and a sweep on missing GPUs is refused before.
    from trainer.algorithm.rule_check import check_rules
    from trainer.policy.load import check_weights
    from trainer.rollouts.prepared import load_data, prepare

    if _on_gpus(base, resources):
        check_fits(base, resources.workers_per_trial, _gpu(resources))
    for config in searched:
        check_rules(config.algorithm)
    for name in models:
        check_weights(base.model.model_copy(update={"name_or_path": name}))
    if scores:
        prepare(base).rewards.close()
    else:
        load_data(base)


def _on_gpus(base: TrainConfig, resources: ResourcesSpec) -> bool:
    return resources.gpus_per_trial > 0 and base.parallel.device != "cpu"


def _gpu(resources: ResourcesSpec) -> Device:
    total = gpu_bytes() or GPU_BYTES
    return Device(True, round(total * min(1.0, resources.gpus_per_worker)))
