"""Checks of model, data, reward and memory, made once before Ray starts."""

import psutil

from sweep.space.points import input_configs, searched_values
from sweep.space.spec import SweepSpec
from trainer.parallel.gpus import gpu_bytes
from trainer.planning.memory import GPU_BYTES, Device, Footprint, check_fits, footprint
from trainer.policy.architectures import TINY
from trainer.shell.preflight import check_early


def trial_memory(spec: SweepSpec) -> Footprint | None:
    """Estimate the memory of a trial as its base configuration says.

    None where the model's size is not known, and for the built-in tiny model, which takes next to nothing.
    """
    if spec.base.model.name_or_path == TINY:
        return None
    device = _gpu(spec) if _on_gpus(spec) else Device(False, psutil.virtual_memory().total)
    return footprint(spec.base, spec.resources.workers_per_trial, device)


def check_training(spec: SweepSpec) -> None:
    """Read the model folder, the tokenizer and every dataset as a trial will, and score one row of them.

    A trial that seems too large for its GPUs is warned about, and every own rule is checked on random tensors.

    Raises:
        MissingError, ConfigError, RewardError: a trial could not run.
    """
    check_early(spec.base)
    # torch and transformers take seconds to import, and a sweep on missing GPUs is refused before.
    from trainer.algorithm.rule_check import check_rules
    from trainer.policy.load import check_weights
    from trainer.rollouts.prepared import load_data, prepare

    if _on_gpus(spec):
        check_fits(spec.base, spec.resources.workers_per_trial, _gpu(spec))
    for config in input_configs(spec):
        check_rules(config.algorithm)
    for name in searched_values(spec, "model.name_or_path"):
        check_weights(spec.base.model.model_copy(update={"name_or_path": name}))
    if any(key.startswith(("reward", "data")) for key in spec.parameters):
        load_data(spec.base)  # each trial finds out whether its rewards score its data
    else:
        prepare(spec.base).rewards.close()


def _on_gpus(spec: SweepSpec) -> bool:
    return spec.resources.gpus_per_trial > 0 and spec.base.parallel.device != "cpu"


def _gpu(spec: SweepSpec) -> Device:
    total = gpu_bytes() or GPU_BYTES
    return Device(True, round(total * min(1.0, spec.resources.gpus_per_worker)))
