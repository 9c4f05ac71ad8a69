"""The configuration of one training run: every field, its unit and its default.

Unknown keys are errors. A file may extend a preset or another file; ``key=value`` pairs with dotted
keys override it. The resolved configuration is saved with the run, so running that file repeats the
run.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator

from loptune.errors import ConfigError
from loptune.files import write_atomically
from loptune.section import MAX_COMPLETIONS, Count, Positive, Section, Seed, refusal
from loptune.yaml_document import (
    KeyPath,
    YamlDocument,
    dump_yaml,
    leaf_keys,
    nearest,
    parse_override,
    section_of,
    submodel,
    validate,
)
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.data import DataConfig, DatasetConfig
from trainer.config.engine_logprobs import engine_logprob_problems
from trainer.config.evaluation import EvaluationConfig
from trainer.config.extends import resolve
from trainer.config.model import ModelConfig
from trainer.config.optim import OptimConfig
from trainer.config.parallel import ParallelConfig
from trainer.config.reward import RewardConfig
from trainer.config.rollout import MAX_VLLM_TEMPERATURE, MIN_VLLM_TEMPERATURE, RolloutConfig
from trainer.config.tracking import CheckpointConfig, TrackingConfig
from trainer.rules.interface import Rule
from trainer.rules.kinds import KINDS


class TrainConfig(Section):
    """One training run."""

    docs_hint: ClassVar[str] = "trainer options {}"

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    parallel: ParallelConfig = ParallelConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
    max_steps: Count | None = None
    """training steps (rollout batches); null: determined by epochs"""
    epochs: Positive = 1.0
    """epochs over the training problems; ignored if max_steps is set"""
    max_hours: Positive | None = None
    """time budget of the run over all its starts [h], after which it stops and can be resumed"""
    seed: Seed = 0
    """seed for data order, sampling and weight initialization"""

    @property
    def completion_limits(self) -> dict[str, int]:
        """Each key that limits the completions of training or of an evaluation set -> its limit
        [tokens].
        """
        limits = {"rollout.max_new_tokens": self.rollout.max_new_tokens}
        for name, section in self.evaluation.sets.items():
            if section.max_new_tokens is not None:
                limits[f"evaluation.sets.{name}.max_new_tokens"] = section.max_new_tokens
            elif self.evaluation.max_new_tokens is not None:
                limits["evaluation.max_new_tokens"] = self.evaluation.max_new_tokens
        return limits

    @property
    def longest_completion(self) -> int:
        """The largest number of tokens that training or an evaluation may sample per completion."""
        return max(self.completion_limits.values())

    def limits_beyond(self, context: int) -> list[str]:
        """Return the keys of the completion limits that a context of this many tokens does not hold
        in addition to the longest prompt.
        """
        room = context - self.data.max_prompt_tokens
        return [key for key, limit in self.completion_limits.items() if limit > room]

    def vllm_temperature_fault(self) -> str | None:
        """Return the problem with a temperature that vLLM would change or reject, or None.

        vLLM raises temperatures between 0 and 0.01 to 0.01, so its log-probabilities would not be
        the policy's, and it rejects temperatures above 2.
        """
        temperatures = {"rollout.temperature": self.rollout.temperature}
        for name in self.evaluation.sets:
            key = f"evaluation.sets.{name}.temperature"
            temperatures[key] = self.evaluation.of_set(name).temperature
        for key, temperature in temperatures.items():
            if temperature != 0 and not MIN_VLLM_TEMPERATURE <= temperature <= MAX_VLLM_TEMPERATURE:
                return (
                    f"{key} is {temperature:g}, at which vLLM does not sample: choose one from "
                    f"{MIN_VLLM_TEMPERATURE:g} to {MAX_VLLM_TEMPERATURE:g}, or set "
                    "rollout.engine to transformers"
                )
        return None

    def data_of_set(self, name: str) -> DataConfig:
        """Return the prompt settings of an evaluation set."""
        section = self.evaluation.sets[name]
        return self.data.of_task(section.task, section.prompt_format)

    def reward_of_set(self, name: str) -> dict[str, float]:
        """Return the reward functions and weights of an evaluation set."""
        return self.evaluation.sets[name].reward or self.reward.functions

    @model_validator(mode="after")
    def _check(self) -> "TrainConfig":
        sections = (self.algorithm, self.rollout, self.optim)
        for problem in engine_logprob_problems(*sections):
            raise problem
        if self.rollout.dynamic_sampling and self.rollout.group_size == 1:
            raise refusal(
                "dynamic-sampling-of-one",
                "dynamic sampling needs more than one completion per prompt: set "
                "rollout.group_size to 2 or more, or rollout.dynamic_sampling to false",
            )
        parallel = self.parallel
        shards = parallel.strategy == "deepspeed" and parallel.zero_stage == 3
        if shards and self.model.compile != "none":
            raise refusal(
                "compile-with-zero-3",
                "model.compile=layers does not work with parallel.zero_stage=3, which gathers "
                "parameters in hooks inside the layers: set model.compile to none, or "
                "parallel.zero_stage to 2 or lower",
            )
        completions = self.rollout.prompts_per_step * self.rollout.group_size
        if completions > MAX_COMPLETIONS:
            raise refusal(
                "too-many-completions",
                f"rollout.prompts_per_step x rollout.group_size is {completions:,} "
                "completions per step, which do not fit in memory: lower the product to at most "
                f"{MAX_COMPLETIONS:,}",
            )
        if self.reward.overlong_buffer > self.rollout.max_new_tokens:
            raise refusal(
                "overlong-buffer-too-long",
                f"reward.overlong_buffer is {self.reward.overlong_buffer}, more than "
                f"rollout.max_new_tokens: set it to at most {self.rollout.max_new_tokens}",
            )
        if self.max_steps is not None and self.optim.warmup_steps > self.max_steps:
            raise refusal(
                "warmup-exceeds-run",
                f"optim.warmup_steps is {self.optim.warmup_steps}, more than max_steps, so "
                f"the run would never reach optim.lr: set it to at most {self.max_steps}",
            )
        if not self.evaluation.sets:
            raise refusal(
                "no-evaluation-sets", "evaluation.sets is empty: list at least one dataset"
            )
        if self.rollout.engine == "vllm" and (fault := self.vllm_temperature_fault()):
            raise refusal("temperature-of-vllm", fault)
        for name in self.evaluation.sets:
            evaluation = self.evaluation.of_set(name)
            if evaluation.completions_per_problem > 1 and evaluation.temperature == 0:
                raise refusal(
                    "identical-completions",
                    f"the evaluation set {name} has temperature 0, so all completions of a "
                    "problem are identical: set evaluation.completions_per_problem to 1, or raise "
                    f"evaluation.temperature; evaluation.sets.{name} may have both keys, too",
                )
        if self.checkpoint.every_steps % self.evaluation.every_steps:
            raise refusal(
                "checkpoint-without-evaluation",
                "checkpoints are only written after evaluations: set checkpoint.every_steps "
                "to a multiple of evaluation.every_steps",
            )
        return self


def load_config(
    spec: str, overrides: Sequence[str] | Mapping[str, Any] = (), relative_to: Path = Path()
) -> TrainConfig:
    """Load a preset or file with its ``extends:`` chain, variant and overrides.

    Overrides are ``key=value`` strings with YAML values, or a mapping of dotted keys. Relative
    paths are resolved against ``relative_to``.

    Raises:
        ConfigError: invalid configuration; the error shows file, line and key.
        MissingError: a named file does not exist.
    """
    document = resolve(spec, _is_section, relative_to)
    config = validate(TrainConfig, document)
    changes = overrides if isinstance(overrides, Mapping) else dict(map(parse_override, overrides))
    return apply_overrides(config, changes) if changes else config


def apply_overrides(
    config: TrainConfig, changes: Mapping[str, Any], source: str = "override"
) -> TrainConfig:
    """Return a validated copy of ``config`` with dotted keys replaced. ``source`` is the place of
    the changes in errors.

    Raises:
        ConfigError: unknown key, invalid value, or ``epochs`` although ``max_steps`` is set.
    """
    data = with_overrides(config, changes, source)
    changed = validate(TrainConfig, YamlDocument(data, {}, source))
    if "epochs" in changes and changed.max_steps is not None:
        raise ConfigError(
            f"epochs has no effect, because max_steps is {changed.max_steps}",
            f"{source}, key epochs",
            "add max_steps=null",
            "epochs",
            code="epochs-without-effect",
        )
    return changed


def with_overrides(
    config: TrainConfig, changes: Mapping[str, Any], source: str = "override"
) -> dict[str, Any]:
    """Return ``config`` as JSON values with dotted keys replaced, without validation. Rules are set
    before their parameters.

    Raises:
        ConfigError: unknown key or rule.
    """
    data = config.model_dump(mode="json")
    for key in sorted(changes, key=lambda key: key.count(".")):
        _set_dotted(data, key, changes[key], source)
    return data


def check_key(key: str, source: str = "override") -> None:
    """Raise if ``TrainConfig`` has no such dotted key.

    Raises:
        ConfigError: no such key, or a section; the error suggests the nearest valid key.
    """
    parts = key.split(".")
    section: type[BaseModel] = TrainConfig
    annotation: Any = TrainConfig
    for depth, part in enumerate(parts):
        if part not in section.model_fields:
            hint = _hint_of_unknown(key, part, section, above=".".join(parts[:depth]))
            raise ConfigError(
                f"unknown key {key}", f"{source}, key {key}", hint, key, code="unknown-key"
            )
        annotation = section.model_fields[part].annotation
        section_below = section_of(annotation)
        if section_below is None:
            return  # a value, or a free mapping such as reward.functions
        section = section_below
    is_optional = section is not annotation  # the key of an optional section can be set to null
    if not is_optional:
        raise ConfigError(
            f"{key} is a section, not a value",
            f"{source}, key {key}",
            nearest(key, leaf_keys(section, f"{key}.")),
            key,
            code="section-as-value",
        )


def _hint_of_unknown(key: str, part: str, section: type[BaseModel], above: str) -> str:
    """Return a hint for ``part`` of a key, which the section at the key ``above`` does not have:
    the equivalent key if another program uses this name, or the nearest key.
    """
    other_names: Mapping[str, str] = getattr(section, "other_names", {})
    if part in other_names:
        return other_names[part]
    valid = [f"{above}.{name}" for name in section.model_fields] if above else dotted_keys()
    return nearest(key, valid, TrainConfig.docs_hint.format(above).strip())


def dotted_keys() -> list[str]:
    """Return all dotted keys of the configuration that have a value."""
    return leaf_keys(TrainConfig)


def value_of(config: TrainConfig, key: str) -> Any:
    """Return the value of a dotted key; for a rule its name, and None inside a null section."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part, None)
    return value.name if isinstance(value, Rule) else value


def dotted_values(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a dumped configuration to dotted keys. A rule's key has its name as value; its
    parameters follow as sub-keys.
    """
    flat: dict[str, Any] = {}
    for name, value in data.items():
        key = f"{prefix}{name}"
        if key in KINDS and isinstance(value, Mapping):
            flat[key] = value["name"]
            value = {parameter: given for parameter, given in value.items() if parameter != "name"}
        if isinstance(value, Mapping) and (value or key in KINDS):
            flat |= dotted_values(value, f"{key}.")
        else:
            flat[key] = value
    return flat


def ineffective_keys(section: Section, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each non-default key that has no effect, with the setting it depends on."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        extra = field.json_schema_extra
        needed = str(extra["needs"]) if isinstance(extra, dict) else ""
        key, _, values = needed.partition("=")
        given = getattr(section, key, None)
        fits = bool(given)
        if values:
            fits = str(given) in values.split("|")
        if needed and not fits and value != field.get_default(call_default_factory=True):
            yield f"{prefix}{name}", f"{prefix}{needed}"
            continue
        parts = [value]
        if isinstance(value, dict):
            parts = list(value.values())
        elif isinstance(value, list):
            parts = value
        for part in parts:
            if isinstance(part, Section):
                yield from ineffective_keys(part, f"{prefix}{name}.")


def save_config(config: TrainConfig, path: Path) -> None:
    """Write the resolved configuration as YAML."""
    write_atomically(path, dump_config(config))


def dump_config(config: TrainConfig) -> str:
    """Return the resolved configuration as YAML text."""
    return dump_yaml(config.model_dump(mode="json"))


def _set_dotted(data: dict[str, Any], key: str, value: Any, source: str) -> None:
    check_key(key, source)
    *parents, last = key.split(".")
    place: Any = data
    for depth, part in enumerate(parents, start=1):
        is_section = submodel(TrainConfig, tuple(parents[:depth])) is not None
        if part not in place or (is_section and place[part] is None):
            place[part] = {}
        place = place[part]
        # a key of the only source in data.train
        is_only_source = isinstance(place, list) and len(place) == 1
        if is_only_source and key.split(".")[depth] in DatasetConfig.model_fields:
            place = place[0]
        if not isinstance(place, dict):
            parent = ".".join(parents[:depth])
            raise ConfigError(
                f"{key}: {parent} has no sub-keys",
                f"{source}, key {key}",
                f"set {parent} as one value",
                key,
                code="no-sub-keys",
            )
    if key in KINDS and isinstance(value, str | Mapping):
        try:
            value = KINDS[key].over(place.get(last), value)
        except ValueError as error:
            hint = nearest(str(value), KINDS[key].registry, f"trainer options {key}")
            raise ConfigError(
                f"{key}: {error}", f"{source}, key {key}", hint, key, code="invalid-value"
            ) from None
    place[last] = value


def _is_section(path: KeyPath) -> bool:
    # free-form mappings (datasets, reward functions, tags, variants) are replaced, not merged
    return (
        path[0] in TrainConfig.model_fields
        and path != ("evaluation", "sets")
        and submodel(TrainConfig, path) is not None
    )
