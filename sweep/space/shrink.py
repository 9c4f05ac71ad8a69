"""A published search space made small enough to really run on a CPU: ``--shrink``.

What is searched stays: parameters, conditions, baselines, sampler, scheduler and the algorithm's settings.
What a run costs goes: the embedded policy writes answers to generated puzzles for two training steps. It
shows that a space runs from its first trial to its report, and says nothing about which update rule is best.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml

from sweep.space.file import dump_space, load_space, resolve_space
from sweep.space.spec import (
    FullSpec,
    LimitsSpec,
    ObjectiveSpec,
    ResourcesSpec,
    SchedulerSpec,
    SearchSpec,
    SweepSpec,
    TrainerSpec,
)
from trainer.commands.run_folder import LONGEST_NAME
from trainer.config.schema import DatasetConfig, TrainConfig, apply_overrides, load_config
from trainer.config.yaml_document import YamlDocument
from trainer.errors import ConfigError

SUFFIX = "-shrunk"
PRESET = "tiny_kk"
STEPS = 2  # training steps, with an evaluation after each
CONFIGURATIONS = 3  # proposed besides the baselines, which all stay; enough for every arm of the ablations
SEEDS = 1
CONCURRENT = 2
TRAINING_PUZZLES = 100
EVALUATION_PUZZLES = 8  # of every evaluation set

# Two steps of four completions: of all sizes the smallest with two optimizer steps in a training step.
_SIZES = {
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 4,
    "optim.update_batch_size": 4,
    "evaluation.every_steps": 1,
    "evaluation.completions_per_problem": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.keep_last": 1,
    "max_steps": STEPS,
    "data.train": [{"source": "generated", "split": "train", "people": [2, 3], "size": TRAINING_PUZZLES}],
}
_KEPT_SECTIONS = ("algorithm", "tracking", "diagnostics")
# Searched values of these name models, data or ranks of the published run, or its length.
_REPLACED = ("model.", "data.", "parallel.", "evaluation.", "checkpoint.", "max_steps", "epochs")


def load_shrunk(path: Path, overrides: Sequence[str] = ()) -> tuple[SweepSpec, str]:
    """Read a search space as ``load_space`` does and shrink it; also one line that says what was replaced.

    Overrides apply to the shrunken space, so that they win over what shrinking sets
    (``trainer.model.name_or_path=FOLDER``, ``search.configurations=8``); only ``trainer.preset`` comes before.

    Raises:
        ConfigError: the space is wrong, or searches what shrinking replaces.
        MissingError: a named file does not exist.
    """
    published = load_space(path, [text for text in overrides if text.startswith("trainer.preset=")])
    document = YamlDocument(yaml.safe_load(dump_space(shrink(published))), {}, f"{path} shrunk")
    small = resolve_space(document, path.parent, overrides)
    return small, _difference(published.base, small.base)


def shrink(spec: SweepSpec) -> SweepSpec:
    """The space ``NAME-shrunk``: same search, embedded policy, generated puzzles, two steps, one seed, no GPU.

    Raises:
        ConfigError: a searched parameter belongs to what is replaced.
    """
    for key in spec.parameters:
        if key.startswith(_REPLACED) and not key.startswith("model.lora."):
            raise ConfigError(
                f"{spec.name} searches {key}, which --shrink replaces",
                f"parameters.{key}",
                "run it as it is with small values given as overrides",
            )
    search, scheduler = spec.search, spec.scheduler
    configurations = (
        CONFIGURATIONS if search.configurations is None else min(CONFIGURATIONS, search.configurations)
    )
    rules = {
        name: rule.model_copy(update={"grace_period": min(rule.grace_period, STEPS)})
        for name, rule in (("asha", scheduler.asha), ("median", scheduler.median))
        if rule is not None
    }
    return SweepSpec(
        name=spec.name[: LONGEST_NAME - len(SUFFIX)] + SUFFIX,
        trainer=TrainerSpec(config=_shrunken_trainer(spec.base)),
        objective=ObjectiveSpec(**spec.objective.model_dump()),
        parameters=spec.parameters,
        baselines=spec.baselines,
        search=SearchSpec(**{**search.model_dump(), "configurations": configurations}),
        seeds=spec.seeds[:SEEDS],
        scheduler=SchedulerSpec(**rules),
        resources=ResourcesSpec(),
        limits=LimitsSpec(max_concurrent=CONCURRENT, max_failures=spec.limits.max_failures),
        full=None if spec.full is None else FullSpec(),
    )


def _difference(large: TrainConfig, small: TrainConfig) -> str:
    policy, before = small.model.name_or_path, large.model.name_or_path
    instead = "" if policy == before else f" instead of {before}"
    data = "its data" if large.data.task == small.data.task else f"task {large.data.task}'s data"
    return (
        f"shrunk: policy {policy}{instead}, generated {small.data.task} puzzles instead of {data}, "
        f"{small.max_steps} steps, no GPU; the scores mean nothing"
    )


def _shrunken_trainer(large: TrainConfig) -> TrainConfig:
    data = load_config(PRESET).model_dump(mode="json")
    for section in _KEPT_SECTIONS:
        data[section] = getattr(large, section).model_dump(mode="json")
    puzzles = DatasetConfig(split="dev", people=[2, 3], size=EVALUATION_PUZZLES).model_dump(mode="json")
    data["model"]["lora"] = large.model.lora.model_dump(mode="json")
    # The sets keep their names: the objective may be the accuracy on one of them.
    sets = {name: {**puzzles, "seed": seed} for seed, name in enumerate(large.evaluation.sets)}
    return apply_overrides(TrainConfig(**data), {**_SIZES, "evaluation.sets": sets})
