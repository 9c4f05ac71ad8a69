"""loptune's own trainer as the program of a sweep."""

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from sweep.programs.base import (
    ABSENT,
    Advice,
    Assignment,
    Checkpoints,
    Footprint,
    Program,
    Sample,
    StopWatcher,
    Values,
)
from sweep.programs.preflight import check_training, trial_memory
from sweep.programs.resources import ResourcesSpec
from trainer.config.data import DatasetConfig
from trainer.config.schema import (
    TrainConfig,
    apply_overrides,
    changed_data,
    check_key,
    dotted_keys,
    dotted_values,
    load_config,
    save_config,
    value_of,
)
from trainer.config.tracking import TrackingConfig
from trainer.config.variants import variant_of
from trainer.config.yaml_document import YamlDocument, nearest
from trainer.errors import ConfigError
from trainer.metrics.declared import METRICS, declaration
from trainer.planning.advice import advise
from trainer.planning.memory import planned_checkpoint_bytes
from trainer.problems.sampler import training_steps
from trainer.rules.kinds import KINDS
from trainer.rules.names import ADVANTAGE_KEY, LOSS_KEY, rule_name
from trainer.tracking.inputs import input_files

if TYPE_CHECKING:
    from trainer.loop import Trainer

_DECIDE_STEPS = ("max_steps", "epochs", "rollout.prompts_per_step")
_INPUTS = ("data.", "reward.", "evaluation.", *KINDS)
_OF_THE_ENGINE = (
    "model",
    "data.max_prompt_tokens",
    "rollout.engine",
    "rollout.vllm",
    "rollout.max_new_tokens",
    "rollout.prompts_per_step",
    "rollout.group_size",
)
_TEST_SET = "test"
_FILES = (".parquet", ".jsonl", ".json", ".csv")


def build_trainer(assignment: Assignment, progress: StopWatcher) -> "Trainer":
    """The trainer of ``trainer run``, for one trial."""
    from trainer.loop import Trainer
    from trainer.parallel.device import free_memory
    from trainer.parallel.start import make_parallel
    from trainer.tracking.tracker import NullTracker, Tracker

    config, context = assignment.config, assignment.context
    free_memory()  # of the trial before in this process
    parallel = make_parallel(config)
    # MLflow may be away: the record is on disk, and is sent once it answers.
    tracker = Tracker(config, context, must_connect=False) if parallel.is_main else NullTracker()
    try:
        return Trainer(config, context, tracker, progress, parallel)
    except BaseException:
        tracker.close("FAILED")
        raise


class LoptuneProgram(Program):
    """The trainer with the configuration that every trial starts from."""

    space_key: ClassVar[str] = "trainer"
    forecast_needs: ClassVar[str] = "say how many steps a trial has with trainer.max_steps=N"
    estimates_sizes: ClassVar[bool] = True
    always_shown: ClassVar[tuple[str, ...]] = ("algorithm.ar_alpha", "algorithm.lopti_eta")

    preset: str | None = Field(None, description="preset[:variant] or YAML file (relative to the search space)")
    overrides: dict[str, Any] = Field(default_factory=dict, description="dotted trainer keys -> values")
    config: TrainConfig | None = Field(
        None, description="resolved configuration, as space.lock.yaml keeps it; replaces the preset"
    )

    @model_validator(mode="after")
    def _check(self) -> "LoptuneProgram":
        if self.preset is None and self.config is None:
            raise ValueError("name a preset or a trainer file: trainer.preset")
        return self

    @property
    def base(self) -> TrainConfig:
        """The configuration that parameters are applied to."""
        assert self.config is not None, "load_space resolves it"
        return self.config

    @property
    def settings(self) -> TrackingConfig:
        """How trials are recorded in MLflow."""
        return self.base.tracking

    def tracked(self, **changes: Any) -> "LoptuneProgram":
        """Return the program with changed `settings`."""
        config = self.base.model_copy(update={"tracking": self.settings.model_copy(update=changes)})
        kept = {key: value for key, value in self.overrides.items() if key.removeprefix("tracking.") not in changes}
        return self.model_copy(update={"config": config, "overrides": kept})

    def resolved(self, folder: Path, document: YamlDocument) -> "LoptuneProgram":
        """Return the program with its preset read and its overrides applied."""
        # A file is named relative to the search space, like `extends:` in a trainer file.
        base = self.config or load_config(str(self.preset), relative_to=folder)
        for key in self.overrides:
            check_key(key, document.place(("trainer", "overrides", key)))
        try:
            config = apply_overrides(base, self.overrides) if self.overrides else base
        except ConfigError as error:
            path = ("trainer", "overrides", *([error.key] if error.key in self.overrides else []))
            raise ConfigError(error.what, document.where(path), error.hint) from None
        if "seed" in self.overrides:
            where = document.where(("trainer", "overrides", "seed"))
            raise ConfigError("the seed of a trial comes from `seeds`", where, "write seeds: [0, 1]")
        return self.model_copy(update={"config": config})

    @staticmethod
    def all_keys() -> list[str]:
        """Return the dotted keys of the trainer."""
        return dotted_keys()

    def keys(self) -> list[str]:
        """Return the keys that may be searched: all."""
        return self.all_keys()

    def has(self, key: str) -> bool:
        """Whether a parameter is a key of the trainer; a name without a dot that it lacks is a switch."""
        return "." in key or key in TrainConfig.model_fields

    def check_key(self, key: str, document: YamlDocument) -> None:
        """Refuse the seed, fixed keys, sections and unknown keys."""
        where = document.where(("parameters", key))
        if key == "seed":
            raise ConfigError("seeds are not searched", where, "write seeds: [0, 1]")
        if key in self.overrides:
            raise ConfigError(f"{key} is both searched and fixed in trainer.overrides", where, "remove one of the two")
        keys = dotted_keys()
        below = [name for name in keys if name.startswith(f"{key}.")]
        if below and key not in keys:
            raise ConfigError(f"{key} is a section, not a value", where, nearest(key, below))
        check_key(key, document.place(("parameters", key)))

    def check_metric(self, metric: str, where: str) -> None:
        """Refuse what no evaluation measures."""
        hint = nearest(metric, [name for name in METRICS if name.startswith("eval/")], "trainer metrics eval/")
        try:
            declaration(metric)
        except KeyError:
            raise ConfigError(f"unknown metric {metric}", where, hint) from None
        if not metric.startswith("eval/"):
            raise ConfigError(f"{metric} is not measured by evaluations", where, hint)

    def check_machine(
        self, searched: Values, resources: ResourcesSpec, max_concurrent: int | None, document: YamlDocument
    ) -> None:
        """Refuse workers without GPUs of their own, batches that they cannot split, and shared vLLM servers."""
        workers, gpus = resources.workers_per_trial, resources.gpus_per_trial
        is_shared = gpus < 1 and workers == 1
        if gpus and not is_shared and gpus != workers:
            what = f"one worker drives one GPU: workers_per_trial is {workers}, gpus_per_trial is {gpus:g}"
            raise ConfigError(what, document.where(("resources",)), "make the two equal")
        self._check_workers(searched, workers, document.where(("resources", "workers_per_trial")))
        rollout = self.base.rollout
        if rollout.engine != "transformers" and rollout.vllm.mode == "server" and max_concurrent != 1:
            raise ConfigError(
                "trials at the same time would overwrite each other's weights on the vLLM servers",
                document.where(("limits", "max_concurrent")),
                "add limits.max_concurrent=1, or trainer.rollout.vllm.mode=colocate",
            )
        if self.base.parallel.device == "cuda" and gpus == 0:
            raise ConfigError(
                "the trainer's configuration is for GPUs, and a trial is given none",
                document.where(("resources", "gpus_per_trial")),
                "add resources.gpus_per_trial=N, or trainer.parallel.device=cpu to compute on the CPU all the same",
            )

    def _check_workers(self, searched: Values, workers: int, where: str) -> None:
        if workers == 1:
            return
        for key in ("parallel.strategy", "rollout.prompts_per_step", "optim.update_batch_size"):
            for value in self._possible(searched, key):
                if value == "none":
                    raise ConfigError(
                        f"{workers} workers a trial, but the trainer's parallel.strategy is none",
                        where,
                        "add trainer.parallel.strategy=ddp or trainer.parallel.strategy=deepspeed",
                    )
                if isinstance(value, int) and value % workers:
                    what = f"{key} {value} cannot be split over {workers} workers"
                    raise ConfigError(what, where, f"make it a multiple of {workers}")

    def _possible(self, searched: Values, key: str) -> Sequence[Any]:
        """Return the values that a search gives a key; the base's where it is not searched."""
        return searched[key] if key in searched else [value_of(self.base, key)]

    def check_early(self, searched: Values, resources: ResourcesSpec) -> None:
        """Read model, tokenizer and data as a trial will, and score a row."""
        models = self._possible(searched, "model.name_or_path")
        scores = not any(key.startswith(("reward", "data")) for key in searched)
        check_training(self.base, resources, list(self._input_configs(searched)), models, scores)

    def _input_configs(self, searched: Values) -> Iterator[TrainConfig]:
        """Yield the base configuration, and one for each data set, reward and rule that is searched."""
        yield self.base
        for key, values in searched.items():
            for value in values if key.startswith(_INPUTS) else ():
                with contextlib.suppress(ConfigError):  # possible only beside other values
                    yield self.configure({key: value})

    def values(self, overrides: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
        """Return the values of keys beside some overrides, of a rule its name."""
        data = changed_data(self.base, overrides)
        return {key: _lookup(data, key) for key in keys}

    def configure(self, overrides: Mapping[str, Any]) -> TrainConfig:
        """Return the configuration of a trial."""
        return apply_overrides(self.base, overrides)

    def save(self, overrides: Mapping[str, Any], path: Path) -> None:
        """Write a file for ``trainer run``."""
        save_config(self.configure(overrides), path)

    def launch_line(self, overrides: Mapping[str, Any], path: Path, workers: int) -> str:
        """Return the ``trainer run`` of a file."""
        return f"torchrun --nproc-per-node {workers} -m trainer run {path}" if workers > 1 else f"trainer run {path}"

    def start(self, assignment: Assignment, progress: StopWatcher) -> "Trainer":
        """Build the trainer of a rank."""
        return build_trainer(assignment, progress)

    def shares_process(self, before: TrainConfig, after: TrainConfig) -> bool:
        """Whether a rank's engine can serve both: vLLM does not free all it takes of a GPU within one process."""
        colocated = after.rollout.engine != "transformers" and after.rollout.vllm.mode == "colocate"
        return not colocated or all(value_of(before, key) == value_of(after, key) for key in _OF_THE_ENGINE)

    def flat(self, resolved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the searched values, a rule's parameters below its name."""
        return dotted_values(resolved)

    def rule_of(self, resolved: Mapping[str, Any]) -> tuple[str, str]:
        """Return advantage with loss, and these with AR, Lopti and the controls."""
        # Without validating the configuration again: a large sweep asks often.
        setting = partial(self._setting, dotted_values(resolved))
        return rule_name(setting(ADVANTAGE_KEY), setting(LOSS_KEY)), variant_of(setting)

    def _setting(self, flat: Mapping[str, Any], key: str) -> Any:
        return flat[key] if key in flat else value_of(self.base, key)

    def is_plain(self, resolved: Mapping[str, Any]) -> bool:
        """Whether AR and Lopti are off."""
        return all(self._setting(resolved, key) == 0 for key in self.always_shown)

    def setting(self) -> tuple[str, str]:
        """Return model and task in words."""
        data = self.base.data
        sources = []
        for source in data.train:
            made = source.digits if data.task == "addition" else source.people
            unit = "digits" if data.task == "addition" else "people"
            generated = f"{', '.join(map(str, made))} {unit}"
            sources.append(generated if source.source == "generated" else source.source)
        return self.base.model.name_or_path, ": ".join(filter(None, (str(data.task), ", ".join(sources))))

    def files(self, searched: Values) -> Iterator[tuple[Path, str]]:
        """Yield data files, and the modules of own rewards and rules."""
        return input_files(self._input_configs(searched))

    def paths(self, searched: Values) -> Iterator[Path]:
        """Yield model and data that exist here; other names are those of the hub."""
        sources: list[DatasetConfig] = [*self.base.data.train, *self.base.evaluation.sets.values()]
        models = self._possible(searched, "model.name_or_path")
        for name in [*models, *(source.source for source in sources)]:
            path = Path(name).expanduser().absolute()
            if path.exists():
                yield path

    def held_out_run(self, metric: str, test: str | None) -> "LoptuneProgram":
        """Return the program with an evaluation set ``test``: a file, else the split of that name."""
        sets = self.base.evaluation.sets
        if _TEST_SET in sets:
            return self.model_copy(update={"overrides": {}})
        measured = metric.split("/")[-1]  # eval/accuracy/SET
        first = sets.get(measured) or next(iter(sets.values()))
        if test is None and first.source.endswith(_FILES):
            what = "the evaluation set is a file, which has no test split"
            raise ConfigError(what, first.source, "name another with --test FILE")
        changes = {"split": "test"} if test is None else {"source": test}
        evaluation = self.base.evaluation.model_copy(
            update={"sets": {**sets, _TEST_SET: first.model_copy(update=changes)}}
        )
        # Without the overrides, which the configuration has and which would take the test set away again.
        config = self.base.model_copy(update={"evaluation": evaluation})
        return self.model_copy(update={"config": config, "overrides": {}})

    def total_steps(self, resolved: Mapping[str, Any]) -> int | None:
        """Return `max_steps`."""
        steps: int | None = self._setting(resolved, "max_steps")
        return steps

    def steps(self, possible: Values) -> tuple[int | None, bool]:
        """Return the training steps of the longest trial, where configuration and space alone decide them."""
        train = self.base.data.train
        problems = None
        if len(train) == 1 and train[0].source == "generated":
            problems = min(train[0].size, train[0].limit or train[0].size)
        choices = [self._possible(possible, key) for key in _DECIDE_STEPS]
        is_searched = any(len(values) > 1 for values in choices)
        longest = 0
        for max_steps, epochs, prompts in itertools.product(*choices):
            if max_steps is not None:
                longest = max(longest, max_steps)
            elif problems is not None:
                longest = max(longest, training_steps(epochs, problems, prompts, self.base.data.drop_last))
            else:
                return None, is_searched
        return longest, is_searched

    def count_evaluations(self, possible: Values) -> int | None:
        """Return the evaluations of the longest trial after its first step."""
        steps, _ = self.steps(possible)
        if steps is None:
            return None
        return max(math.ceil(steps / int(every)) for every in self._possible(possible, "evaluation.every_steps"))

    def checkpoints(self, on_gpu: bool) -> Checkpoints:
        """Return what a trial keeps in its folder."""
        kept = self.base.checkpoint
        weights = planned_checkpoint_bytes(self.base, on_gpu, weights_only=True)
        return Checkpoints(
            kept.every_steps,
            kept.keep_last + kept.keep_best,
            planned_checkpoint_bytes(self.base, on_gpu),
            None if weights is None else weights * (1 + kept.keep_best),
        )

    def memory(self, resources: ResourcesSpec) -> Footprint | None:
        """Estimate the memory of a trial as its base configuration says."""
        return trial_memory(self.base, resources)

    def is_like(self, other: Program) -> bool:
        """Whether another sweep trains and evaluates alike; its rules may differ."""

        def scored(base: TrainConfig) -> tuple[object, ...]:
            return (*(base.model, base.data, base.rollout, base.optim, base.evaluation, base.max_steps, base.epochs),)

        return isinstance(other, LoptuneProgram) and scored(other.base) == scored(self.base)

    def takes_steps_like(self, other: Program) -> bool:
        """Whether model, rollout and optimizer are the same."""
        mine = self.base
        if not isinstance(other, LoptuneProgram):
            return False
        theirs = other.base
        return (mine.model, mine.rollout, mine.optim) == (theirs.model, theirs.rollout, theirs.optim)

    def advice(self) -> Iterator[Advice]:
        """Yield advice on the base configuration."""
        return advise(self.base)

    def sample(self, possible: Values, problems: int) -> Sample:
        """Sample with the base configuration, for each possible group size."""
        from trainer.evaluation.look import look_at  # which imports torch

        sizes = sorted(set(self._possible(possible, "rollout.group_size")))
        look = look_at(self.base, problems, sizes)
        error = look.error_on(self.base, next(iter(look.set_sizes)))
        return Sample(look.lines(self.base, sizes), error, list(look.advice(self.base)), look.as_json(sizes))


def _lookup(data: Mapping[str, Any], key: str) -> Any:
    """Return the value behind a dotted key of a dumped configuration, of a rule its name, or a marker for none."""
    place: Any = data
    for part in key.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return ABSENT
        place = place[part]
    return place["name"] if key in KINDS else place
