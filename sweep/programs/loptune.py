"""loptune's own trainer as the program of a sweep."""

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from loptune.errors import ConfigError
from loptune.progress import MetricValues, ProgressReport
from loptune.run_names import command_line, trainer_words
from loptune.section import refusal
from loptune.yaml_document import YamlDocument
from sweep.programs.base import (
    ABSENT,
    Advice,
    Assignment,
    Checkpoints,
    Footprint,
    Overrides,
    Program,
    ResourcesSpec,
    Sample,
    TrialRun,
    Values,
)
from sweep.programs.loptune_checks import (
    TEST_SET,
    check_inputs,
    check_objective,
    check_parameter,
    check_workers,
    possible_values,
)
from trainer.config.evaluation import EvaluationSet
from trainer.config.schema import (
    TrainConfig,
    apply_overrides,
    dotted_keys,
    dotted_values,
    load_config,
    save_config,
    value_of,
    with_overrides,
)
from trainer.config.tracking import TrackingConfig
from trainer.config.variants import rule_label
from trainer.parallel.gpus import gpu_bytes
from trainer.planning.advice import advise, one_step_advice, optimizer_steps
from trainer.planning.memory import GPU_BYTES, Device, footprint, planned_checkpoint_bytes
from trainer.policy.architectures import TINY
from trainer.problems.sampler import training_steps
from trainer.rules.kinds import KINDS
from trainer.rules.names import ADVANTAGE_KEY, DEFAULT_LOSS, LOSS_KEY, rule_name
from trainer.tracking.inputs import input_files

if TYPE_CHECKING:  # torch takes seconds to import
    from trainer.loop import Trainer

_ACCURACY = "eval/accuracy"  # accuracy on the first set; for others eval/accuracy/SET
_DECIDE_OPTIMIZER_STEPS = (
    "rollout.prompts_per_step",
    "rollout.group_size",
    "optim.update_batch_size",
    "algorithm.update_epochs",
)
_DECIDE_STEPS = ("max_steps", "epochs", "rollout.prompts_per_step")
_INPUTS = ("data.", "reward.", "evaluation.", *KINDS)
# configuration keys that determine a vLLM engine
_ENGINE_KEYS = (
    "model",
    "data.max_prompt_tokens",
    "rollout.engine",
    "rollout.vllm",
    "rollout.max_new_tokens",
    "rollout.prompts_per_step",
    "rollout.group_size",
)


class LoptuneProgram(Program):
    """The trainer with the configuration that every trial starts from."""

    space_key = "trainer"
    forecast_needs = "set the number of steps with trainer.max_steps=N"
    estimates_sizes = True
    seeds_are_blocks = True
    amounts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "tokens": ("rollout/tokens",),
        "completions": ("rollout/completions",),
    }
    always_shown = ("algorithm.ar_alpha", "algorithm.lopti_eta")
    rule_keys = (ADVANTAGE_KEY, LOSS_KEY)

    preset: str | None = None
    """preset[:variant] or YAML file (relative to the search space)"""
    overrides: dict[str, Any] = Field({})
    """dotted trainer keys -> values"""
    config: TrainConfig | None = None
    """resolved configuration, as stored in space.lock.yaml; replaces the preset"""
    held_out_set: EvaluationSet | None = None
    """held-out set evaluation.sets.test; only `sweep confirm` evaluates on it"""

    @model_validator(mode="after")
    def _check(self) -> "LoptuneProgram":
        if self.preset is None and self.config is None:
            raise refusal(
                "no-preset",
                "the trainer has no preset",
                "set trainer.preset to a preset or a trainer file",
            )
        if "seed" in self.overrides:
            raise refusal(
                "seed-fixed", "the seed of a trial comes from `seeds`", "write seeds: [0, 1]"
            )
        return self

    @property
    def base(self) -> TrainConfig:
        """The configuration that parameters are applied to."""
        assert self.config is not None, "load_space has not resolved the configuration"
        return self.config

    @property
    def tracking_settings(self) -> TrackingConfig:
        """MLflow settings of the trials."""
        return self.base.tracking

    def with_tracking(self, **changes: Any) -> "LoptuneProgram":
        """Return the program with changed `tracking_settings`."""
        tracking = self.tracking_settings.model_copy(update=changes)
        return self._with(self.base.model_copy(update={"tracking": tracking}))

    def _with(self, config: TrainConfig) -> "LoptuneProgram":
        # Drop the overrides: they would undo changes to the same keys.
        return self.model_copy(update={"config": config, "overrides": {}})

    def resolved(self, folder: Path, document: YamlDocument) -> "LoptuneProgram":
        """Return the program with its preset read and its overrides applied.

        Raises:
            ConfigError: the preset or an override is invalid, `max_hours` is set, or the held-out
                set is the first set.
            MissingError: there is no such preset or file.
        """
        # File paths are relative to the search space, as for `extends:` in a trainer file.
        base = self.config or load_config(str(self.preset), relative_to=folder)
        try:
            config = apply_overrides(base, self.overrides)
        except ConfigError as error:
            path: tuple[str, ...] = ("trainer", "overrides")
            if error.key in self.overrides:
                path = (*path, error.key)
            raise document.error(error.what, path, error.hint, error.code) from None
        if config.max_hours is not None:
            raise document.error(
                "max_hours limits a single run",
                ("trainer",),
                "write limits: {time_budget_s: SECONDS} for the sweep, and trainer.overrides: "
                "{max_hours: null} if the preset has one",
                "max-hours-in-sweep",
            )
        if document.data.get("confirms"):
            return self.model_copy(update={"config": config})
        return self._without_held_out_set(config, document)

    def _without_held_out_set(
        self, config: TrainConfig, document: YamlDocument
    ) -> "LoptuneProgram":
        """Return the program of a search, which evaluates on all sets except the held-out one.

        Raises:
            ConfigError: the held-out set is the first one, which gives the score.
        """
        sets = dict(config.evaluation.sets)
        if next(iter(sets)) == TEST_SET:
            what = f"{TEST_SET} is held out in a sweep, so it cannot be the first evaluation set"
            raise document.error(
                what, ("trainer",), "rename it, or put another set before it", "first-set-held-out"
            )
        held_out_set = sets.pop(TEST_SET, self.held_out_set)
        searched = config.model_copy(
            update={"evaluation": config.evaluation.model_copy(update={"sets": sets})}
        )
        return self.model_copy(update={"config": searched, "held_out_set": held_out_set})

    @staticmethod
    def keys() -> list[str]:
        """Return the keys of the trainer's configuration."""
        return dotted_keys()

    def has(self, key: str) -> bool:
        """Return whether a parameter is a trainer key; a name without a dot may be a switch."""
        return "." in key or key in TrainConfig.model_fields

    def check_key(self, key: str, document: YamlDocument) -> None:
        """Raise ConfigError for the seed, `max_hours`, fixed keys, sections and unknown keys."""
        check_parameter(key, self.overrides, document)

    def check_metric(self, metric: str, key: str, searched: Values, document: YamlDocument) -> None:
        """Raise ConfigError for a metric that a search does not measure, or a parameter that
        changes the evaluation.
        """
        check_objective(metric, key, self.base, searched, document)

    def check_machine(
        self,
        searched: Values,
        resources: ResourcesSpec,
        max_concurrent: int | None,
        document: YamlDocument,
    ) -> None:
        """Raise ConfigError for workers without a GPU each, several workers without a parallel
        strategy, batches that cannot be split, shared vLLM servers, and missing GPUs.
        """
        check_workers(self.base, searched, resources, max_concurrent, document)

    def check_early(
        self, searched: Values, resources: ResourcesSpec, metrics: Sequence[str]
    ) -> None:
        """Load models, tokenizer and data as a trial does, run custom rules once, and score one
        row.

        Warn if a trial seems too large for its GPUs. If data or rewards are searched, no row is
        scored; each trial then checks them itself.

        Raises:
            UserError: see `check_inputs`.
        """
        check_inputs(
            self.base,
            self._input_configs(searched),
            searched,
            resources.workers_per_trial,
            self._device(resources),
            metrics,
        )

    def _device(self, resources: ResourcesSpec) -> Device:
        """Return the device of a rank: a GPU, a fraction of a GPU, or this machine's memory."""
        if not resources.gpus_per_trial or self.base.parallel.device == "cpu":
            import psutil  # imported here: at the top it would slow down every command

            return Device(False, psutil.virtual_memory().total)
        return Device(True, round((gpu_bytes() or GPU_BYTES) * min(1.0, resources.gpus_per_worker)))

    def _input_configs(self, searched: Values) -> Iterator[TrainConfig]:
        """Yield the base configuration, the configuration with the held-out set, and a
        configuration for each searched value of data, rewards, evaluation and rules.
        """
        yield self.base
        if self.held_out_set is not None:
            yield self.held_out_run("", None).base
        for key, values in searched.items():
            if not key.startswith(_INPUTS):
                continue
            for value in values:
                with contextlib.suppress(ConfigError):  # it may be valid only with other values
                    yield self.configure({key: value})

    def with_settings(self, settings: Overrides, command: Sequence[str] | None) -> "LoptuneProgram":
        """Return the program with changed settings; it has no command line.

        Raises:
            ConfigError: a setting is invalid, or a command line is given.
        """
        if command:
            raise ConfigError(
                "loptune's own trainer has no command",
                "command line",
                "change its settings: KEY=VALUE",
                code="no-command",
            )
        return self._with(apply_overrides(self.base, settings))

    def values(self, overrides: Overrides, keys: Sequence[str]) -> Overrides:
        """Return the values of keys with some overrides applied; for an update rule, its name."""
        data = with_overrides(self.base, overrides)
        return {key: _lookup(data, key) for key in keys}

    def configure(self, overrides: Overrides) -> TrainConfig:
        """Return the configuration of a trial."""
        return apply_overrides(self.base, overrides)

    def save(self, overrides: Overrides, path: Path) -> None:
        """Write a file for ``trainer run``."""
        save_config(self.configure(overrides), path)

    def launch_command(self, overrides: Overrides, path: Path, workers: int) -> str:
        """Return the ``trainer run`` command for a file."""
        return command_line(*trainer_words(workers), "run", str(path))

    def start(self, assignment: Assignment) -> TrialRun:
        """Build a rank's trainer, as ``trainer run`` does."""
        return _start_trainer(assignment)

    def shares_process(self, before: TrainConfig, after: TrainConfig) -> bool:
        """Return whether both configurations can use the same engine: vLLM does not free all of its
        GPU memory within a process.
        """
        if after.rollout.engine == "transformers" or after.rollout.vllm.mode != "colocate":
            return True
        return all(value_of(before, key) == value_of(after, key) for key in _ENGINE_KEYS)

    def flat(self, resolved: Overrides) -> Overrides:
        """Return the searched values as dotted keys, with the parameters of an update rule below
        its name.
        """
        return dotted_values(resolved)

    def rule_of(self, resolved: Overrides) -> tuple[str, str]:
        """Return the algorithm (advantage and loss), and the update rule (with AR, Lopti and
        controls).
        """
        # No validation here, because large sweeps call this often.
        flat = dotted_values(resolved)

        def setting(key: str) -> Any:
            return flat[key] if key in flat else value_of(self.base, key)

        return rule_name(setting(ADVANTAGE_KEY), setting(LOSS_KEY)), rule_label(setting)

    def setting(self) -> tuple[str, str]:
        """Return the model and the task as text."""
        data = self.base.data
        sources = []
        for source in data.train:
            if source.source != "generated":
                sources.append(source.source)
            elif data.task == "addition":
                sources.append(f"{', '.join(map(str, source.digits))} digits")
            else:
                sources.append(f"{', '.join(map(str, source.people))} people")
        return self.base.model.name_or_path, f"{data.task}: {', '.join(sources)}"

    def files(self, searched: Values) -> Iterator[tuple[Path, str]]:
        """Yield data files, and the modules of custom rewards and rules."""
        return input_files(self._input_configs(searched))

    def paths(self, searched: Values) -> Iterator[Path]:
        """Yield the `files` and local model folders; other model names are on the Hub."""
        yield from super().paths(searched)
        for name in possible_values(self.base, searched, "model.name_or_path"):
            path = Path(name).expanduser().absolute()
            if path.exists():
                yield path

    def held_out_run(self, metric: str, test: str | None) -> "LoptuneProgram":
        """Return the program with an evaluation set ``test``: the file, else the held-out set, else
        the split `test`.

        Raises:
            ConfigError: ``test`` is None, and the program has no held-out problems.
        """
        sets = self.base.evaluation.sets
        measured = metric.split("/")[-1]  # the set, in a metric such as eval/accuracy/SET
        like = self.held_out_set or sets.get(measured) or next(iter(sets.values()))
        if test is None and self.held_out_set is None and like.source != "generated":
            raise ConfigError(
                f"{like.source} has no held-out problems",
                like.source,
                "add them with --test FILE or evaluation.sets.test",
                code="no-held-out-problems",
            )
        if test is not None:
            like = like.model_copy(update={"source": test})
        elif self.held_out_set is None:
            like = like.model_copy(update={"split": TEST_SET})
        return self._with(self.configure({"evaluation.sets": {**sets, TEST_SET: like}}))

    def steps(self, possible: Values) -> tuple[int | None, bool]:
        """Return the training steps of the longest trial (None if configuration and space do not
        determine them), and whether a searched key changes them.
        """
        choices = [possible_values(self.base, possible, key) for key in _DECIDE_STEPS]
        lengths = {self._steps_of(*choice) for choice in itertools.product(*choices)}
        longest = None if None in lengths else max(filter(None, lengths))
        return longest, len(lengths) > 1

    def _steps_of(self, max_steps: int | None, epochs: float, prompts: int) -> int | None:
        sources = self.base.data.train
        if max_steps is not None or [source.source for source in sources] != ["generated"]:
            return max_steps
        problems = min(sources[0].size, sources[0].limit or sources[0].size)
        return training_steps(epochs, problems, prompts, self.base.data.drop_last)

    def count_evaluations(self, possible: Values) -> int | None:
        """Return the number of evaluations in the longest trial, without the evaluation before
        training; None if unknown.
        """
        steps, _ = self.steps(possible)
        every = min(possible_values(self.base, possible, "evaluation.every_steps"))
        return None if steps is None else math.ceil(steps / int(every))

    def score_step(self, metric: str) -> float | None:
        """Return how much one correct answer adds to the accuracy on an evaluation set; None for
        other metrics, or if the number of problems is unknown.
        """
        evaluation = self.base.evaluation
        if metric != _ACCURACY and not metric.startswith(f"{_ACCURACY}/"):
            return None
        name = metric.removeprefix(_ACCURACY).removeprefix("/") or next(iter(evaluation.sets))
        if name not in evaluation.sets:  # the name is a difficulty
            return None
        dataset = evaluation.sets[name]
        problems = dataset.limit
        if dataset.source == "generated":
            problems = min(dataset.size, dataset.limit or dataset.size)
        if problems is None:
            return None
        return 1 / (problems * evaluation.of_set(name).completions_per_problem)

    def checkpoints(self, on_gpu: bool) -> Checkpoints:
        """Return the checkpoints that a trial keeps in its folder."""
        kept = self.base.checkpoint
        weights = planned_checkpoint_bytes(self.base, on_gpu, weights_only=True)
        number = kept.keep_last + kept.keep_best
        ended = None  # bytes of an ended trial, which keeps only weights
        if weights is not None:
            ended = weights * number
        return Checkpoints(
            every_steps=kept.every_steps,
            kept=number,
            running_bytes=planned_checkpoint_bytes(self.base, on_gpu),
            ended_bytes=ended,
        )

    def memory(self, resources: ResourcesSpec) -> Footprint | None:
        """Estimate the memory of a trial with the base configuration; None for the tiny model on a
        CPU, which needs little.
        """
        if self.base.model.name_or_path == TINY and not resources.gpus_per_trial:
            return None
        return footprint(self.base, resources.workers_per_trial, self._device(resources))

    def scores_like(self, other: Program) -> bool:
        """Return whether another sweep trains and evaluates in the same way; update rules may
        differ.
        """
        return self._shares(
            other, "model", "data", "rollout", "optim", "evaluation", "max_steps", "epochs"
        )

    def same_step_time(self, other: Program) -> bool:
        """Return whether model, rollout and optimizer are the same."""
        return self._shares(other, "model", "rollout", "optim")

    def _shares(self, other: Program, *sections: str) -> bool:
        if not isinstance(other, LoptuneProgram):
            return False
        for section in sections:
            if getattr(self.base, section) != getattr(other.base, section):
                return False
        return True

    def advice(self, searched: Values) -> Iterator[Advice]:
        """Yield advice on the base configuration, except on searched keys."""
        for advice in advise(self.base):
            if searched.keys().isdisjoint(advice.where.split(", ")):
                yield advice
        yield from self._advice_on_rules(searched)

    def _advice_on_rules(self, searched: Values) -> Iterator[Advice]:
        """Yield advice if the compared losses are equivalent under the base configuration."""
        is_default = self.base.algorithm.loss.name == DEFAULT_LOSS
        compares_losses = any(key == LOSS_KEY or key.startswith(f"{LOSS_KEY}.") for key in searched)
        if not compares_losses or not is_default:  # `advise` warns about all other losses
            return
        decisive = searched.keys() & set(_DECIDE_OPTIMIZER_STEPS)
        if not decisive and optimizer_steps(self.base) == 1:
            yield one_step_advice(self.base, "Losses")

    def sample(self, possible: Values, problems: int) -> Sample:
        """Sample with the base configuration, for each possible group size.

        Raises:
            ConfigError, MissingError, RewardError: see `check_before_training`.
        """
        # this import loads torch
        from trainer.evaluation.pretraining_check import check_before_training

        sizes = sorted(set(possible_values(self.base, possible, "rollout.group_size")))
        check = check_before_training(self.base, problems, sizes)
        error = check.error_on(self.base, next(iter(check.set_sizes)))
        return Sample(
            check.lines(self.base, sizes), error, list(check.advice()), check.as_json(sizes)
        )


def _lookup(data: Mapping[str, Any], key: str) -> Any:
    """Return a dumped configuration's value at a dotted key (a rule's name for a rule), or
    ABSENT.
    """
    place: Any = data
    for part in key.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return ABSENT
        place = place[part]
    return place["name"] if key in KINDS else place


class _StopWatcher(ProgressReport):
    """A progress report that asks the trainer to stop after a step once the stop file exists."""

    def __init__(self, stop_file: Path) -> None:
        self._stop_file = stop_file
        self.trainer: Trainer | None = None

    def step(self, step: int, metrics: MetricValues) -> None:
        """Check for the stop file after a training step."""
        if self.trainer is not None and self._stop_file.exists():
            self.trainer.request_stop()


def _start_trainer(assignment: Assignment) -> "Trainer":
    """Build a rank's trainer, as ``trainer run`` does."""
    from trainer.loop import Trainer
    from trainer.parallel.device import free_memory
    from trainer.parallel.strategy import make_parallel
    from trainer.tracking.tracker import NullTracker, Tracker

    config = assignment.config
    context = assignment.context
    free_memory()  # memory of the previous trial in this process
    parallel = make_parallel(config)
    tracker: Tracker | NullTracker = NullTracker()
    if parallel.is_main:
        # If MLflow is down, the record stays on disk and is uploaded later.
        tracker = Tracker(config, context, must_connect=False)
    watcher = _StopWatcher(assignment.stop_file)
    try:
        watcher.trainer = Trainer(config, context, tracker, watcher, parallel)
    except BaseException:
        tracker.close("FAILED")
        raise
    return watcher.trainer
