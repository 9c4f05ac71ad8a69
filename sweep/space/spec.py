"""The search space: the searched parameters, and how trials are scored, scheduled and limited.

The YAML file is the one of ``search_spaces/``; `sweep.space.file` reads and `sweep.space.checks` checks it.
"""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from sweep.space.parameters import ParameterSpec, ValueMapping
from trainer.config.schema import TrainConfig
from trainer.section import Count, NonNegative, Positive, Section
from trainer.shell.run_folder import NAME_RULE, is_name

# Keys of the results a trial reports to Tune after every evaluation.
SCORE = "score"  # objective: mean of the last `window` evaluations
STEP = "step"  # training step of the evaluation
EVALUATION = "evaluation"  # evaluations after the first training step; the schedulers' time
FINISHED_KEY = "finished"  # true when the trial trained to its end
INTERRUPTED_KEY = "interrupted"  # true when the sweep was stopped: the trial keeps its place and goes on later
STORAGE_KEY = "storage"  # what, where and hint of a StorageError that interrupted the trial, and stops the sweep
GIVEN_UP_KEY = "given_up"  # in a trial's configuration: its last failure, after which it is not tried again (text)
REASON_KEY = "reason"  # why a trial FAILED in a way that a retry would only repeat (text)


class TrainerSpec(Section):
    """The configuration that every trial starts from."""

    preset: str | None = Field(None, description="preset[:variant] or YAML file (relative to the search space)")
    overrides: ValueMapping = Field(default_factory=dict, description="dotted trainer keys -> values")
    config: TrainConfig | None = Field(
        None, description="resolved configuration, as space.lock.yaml keeps it; replaces the preset"
    )

    @model_validator(mode="after")
    def _check(self) -> "TrainerSpec":
        if self.preset is None and self.config is None:
            raise ValueError("name a preset or a trainer file: trainer.preset")
        return self


class ObjectiveSpec(Section):
    """The number a sweep optimises."""

    metric: str = Field("eval/accuracy", description="evaluation metric")
    mode: Literal["max", "min"] = Field("max", description="whether larger or smaller is better")
    window: Count = Field(3, description="score = mean of the last N evaluations")
    worthwhile: Positive = Field(0.01, description="smallest gain over the baseline that matters")
    published: Positive | None = Field(None, description="a gain claimed elsewhere, for `sweep plan`")


class SearchSpec(Section):
    """Which configurations are tried."""

    sampler: Literal["tpe", "random", "grid", "gp"] = Field("tpe", description="how configurations are proposed")
    configurations: Annotated[int, Field(ge=0)] | None = Field(
        None, description="configurations to propose besides the baselines; the whole grid if null"
    )
    tune_within: str | None = Field(
        None, description="parameter each of whose values is tuned alone, by so many configurations"
    )
    seed: int = Field(0, description="seed of the sampler", ge=0)
    startup: Count | None = Field(
        None, description="random configurations before the sampler learns (baselines count)"
    )
    warm_start: list[str] = Field(
        default_factory=list, description="earlier sweeps whose best configurations run after the baselines"
    )
    earlier_seeds: list[int] = Field(
        default_factory=list, description="seeds of the sweeps of `warm_start`; written by `sweep run`"
    )

    @model_validator(mode="after")
    def _check(self) -> "SearchSpec":
        if self.configurations is None and self.sampler != "grid":
            raise ValueError(f"say how many configurations {self.sampler} may propose: search.configurations")
        return self


class AshaSpec(Section):
    """Asynchronous successive halving."""

    grace_period: Count = Field(3, description="evaluations before a trial may be stopped")
    reduction_factor: Annotated[float, Field(gt=1)] = Field(2, description="one of N goes on at each rung")


class MedianSpec(Section):
    """Stop a trial whose best score is below the median of the others' running means."""

    grace_period: Count = Field(3, description="evaluations before a trial may be stopped")
    min_samples: Count = Field(3, description="trials needed for a median")


class SchedulerSpec(Section):
    """Early stopping; none where neither is set."""

    asha: AshaSpec | None = Field(None, description="asynchronous successive halving")
    median: MedianSpec | None = Field(None, description="median stopping rule")

    @model_validator(mode="after")
    def _check(self) -> "SchedulerSpec":
        if self.asha and self.median:
            raise ValueError("choose one of asha and median")
        return self


_SchedulerInput = Literal["none", "asha", "median"] | SchedulerSpec | None


def _read_scheduler(value: Any) -> Any:
    if value is None or value == "none":
        return {}
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, dict):  # `asha:` with nothing behind it means its defaults
        return {key: {} if item is None and len(value) == 1 else item for key, item in value.items()}
    return value


class ResourcesSpec(Section):
    """Resources of one trial; its own process, which waits for the ranks, is not counted."""

    gpus_per_trial: NonNegative = Field(0, description="GPUs; one worker drives one; below 1 is a share")
    workers_per_trial: Count = Field(1, description="rank processes")
    cpus_per_worker: Count = Field(1, description="CPU cores of a rank")

    @property
    def gpus_per_worker(self) -> float:
        """GPUs of one rank."""
        return self.gpus_per_trial / self.workers_per_trial

    @model_validator(mode="after")
    def _check(self) -> "ResourcesSpec":
        shared = self.gpus_per_trial < 1 and self.workers_per_trial == 1
        if self.gpus_per_trial and not shared and self.gpus_per_trial != self.workers_per_trial:
            raise ValueError(
                f"one worker drives one GPU: workers_per_trial is {self.workers_per_trial}, "
                f"gpus_per_trial is {self.gpus_per_trial:g}"
            )
        return self


class LimitsSpec(Section):
    """Limits on time, devices and retries."""

    max_concurrent: Count | None = Field(None, description="trials at a time; what fits if null")
    max_failures: Annotated[int, Field(ge=0)] = Field(2, description="retries of a trial that dies")
    time_budget_s: Positive | None = Field(None, description="stop after this long [s]")
    gpu_hours: Positive | None = Field(None, description="stop after this many GPU hours")
    stall_timeout_s: Positive = Field(
        1800, description="a trial that neither trains a step nor evaluates for this long counts as failed [s]"
    )


class ConfirmsSpec(Section):
    """The origin of finalists, in the space that `sweep confirm` writes."""

    sweep: str = Field(description="name of the sweep that chose them")
    configurations: list[int] = Field(description="its numbers of the configurations under `baselines`")


class SweepSpec(Section):
    """A search space, read and checked."""

    explained_by: ClassVar[str] = "docs/search_space.md lists every key"

    name: str = Field(description="name of the sweep: its folder and its MLflow experiment")
    trainer: Annotated[
        TrainerSpec,
        BeforeValidator(lambda value: {"preset": value} if isinstance(value, str) else value, str | TrainerSpec),
    ] = Field(description="what every trial starts from")
    objective: ObjectiveSpec = Field(ObjectiveSpec(), description="the number to optimise")
    parameters: dict[str, ParameterSpec] = Field(default_factory=dict, description="trainer key or switch -> range")
    baselines: list[ValueMapping] = Field(default_factory=list, description="configurations to run first")
    search: SearchSpec = Field(description="which configurations are tried")
    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        [0], description="every configuration runs once per seed", min_length=1
    )
    scheduler: Annotated[SchedulerSpec, BeforeValidator(_read_scheduler, _SchedulerInput)] = Field(
        SchedulerSpec(), description="none, asha or median"
    )
    resources: ResourcesSpec = Field(ResourcesSpec(), description="what one trial occupies")
    limits: LimitsSpec = Field(LimitsSpec(), description="what the sweep may spend")
    confirms: ConfirmsSpec | None = Field(None, description="the sweep whose finalists run; written by `confirm`")

    @property
    def base(self) -> TrainConfig:
        """The trainer configuration that parameters are applied to."""
        assert self.trainer.config is not None, "load_space resolves it"
        return self.trainer.config

    @property
    def experiment(self) -> str:
        """The MLflow experiment of the sweep and its trials."""
        return self.base.tracking.experiment or self.name

    def reported(self, configuration: int) -> int:
        """The number under which MLflow has a configuration: a finalist's is that of the sweep that chose it."""
        return configuration if self.confirms is None else self.confirms.configurations[configuration]

    @property
    def adaptive(self) -> bool:
        """Whether scores decide what is tried, how long, or compared; scores on such seeds are not evidence."""
        search = self.search
        follows = search.sampler not in ("random", "grid") or search.tune_within is not None
        return (follows and search.configurations != 0) or self.scheduler != SchedulerSpec()

    @property
    def spent_seeds(self) -> set[int]:
        """The seeds whose scores steer the search: its own, and those of the sweeps that it begins with."""
        return {*self.seeds, *self.search.earlier_seeds}

    @property
    def evaluations(self) -> int | None:
        """Evaluations of a trial after its first step; None where the data or a parameter decides."""
        steps, every = self.base.max_steps, self.base.evaluation.every_steps
        if steps is None or {"max_steps", "evaluation.every_steps"} & set(self.parameters):
            return None
        return math.ceil(steps / every)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not is_name(name):
            raise ValueError(f"a name has {NAME_RULE}")
        return name

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds must differ: {seeds}")
        return seeds
