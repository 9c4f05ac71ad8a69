"""The search space: the searched parameters, and how trials are scored, scheduled and limited.

This is the schema of the YAML files in ``search_spaces/``. `sweep.space.file` reads them and
`sweep.space.checks` checks them.
"""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from dashboards.sources.directions import usual_direction
from dashboards.statistics.composites import Composite
from dashboards.trial import Mode
from loptune.run_names import NAME_RULE, is_name
from loptune.section import Count, NonNegative, Positive, Section, Seed, needs, refusal
from loptune.terminal.table import counted
from sweep.programs.base import ABSENT, Program, ResourcesSpec
from sweep.programs.command import CommandProgram
from sweep.programs.loptune import LoptuneProgram
from sweep.space.parameters import ParameterSpec, ValueMapping, same_value
from sweep.space.points import Space

MULTI_OBJECTIVE = ("nsga2", "motpe")  # samplers
STEP = "step"  # the axis of scores that are means of the last evaluations


def _unique(values: list[Any]) -> list[Any]:
    if len(set(values)) != len(values):
        raise refusal("duplicates", f"duplicates in {values}", "list each once")
    return values


def _add_new(values: list[Any], value: Any) -> None:
    """Append a value, unless it is already in the list or the key does not exist."""
    if value is not ABSENT and not any(same_value(value, earlier) for earlier in values):
        values.append(value)


class SecondSpec(Section):
    """A second objective: it is recorded in addition to the score, and no verdict depends on it."""

    metric: str
    """an axis such as gpu_hours (the amount that a trial has used), or a metric, which is scored
    like the objective"""
    mode: Mode | None = None
    """max or min; null: inferred from the name, as for guards (min for tokens, seconds, hours,
    length or loss)"""

    @property
    def direction(self) -> Mode:
        """Whether larger or smaller values are better.

        Raises:
            ConfigError: there is no mode, and the name of the metric is unclear.
        """
        return self.direction_at("objective.second.mode")

    def direction_at(self, where: str) -> Mode:
        """Return whether larger or smaller values are better.

        Args:
            where: the place to name in an error.

        Raises:
            ConfigError: there is no mode, and the name of the metric is unclear.
        """
        fix = "write mode: min, or mode: max if larger values are better"
        return usual_direction(self.metric, self.mode, where, fix)


class ObjectiveSpec(Section):
    """The objective of a sweep."""

    metric: str | Annotated[list[str], AfterValidator(_unique), Field(min_length=2)] = (
        "eval/accuracy"
    )
    """evaluation metric; a list of metrics is combined into one score by `composite`"""
    composite: Literal["mean", "iqm"] | dict[str, NonNegative] = "mean"
    """how several metrics become one score: mean, iqm (interquartile mean), or metric -> weight"""
    mode: Literal["max", "min"] = "max"
    """whether larger or smaller is better"""
    window: Count = 3
    """score = mean of the last N evaluations; with `axis`, mean over the last tenth before `at`"""
    axis: str = STEP
    """axis along which trials are compared: step, seconds, gpu_hours or cpu_hours; with loptune's
    trainer also tokens or completions; with your own program any metric that grows"""
    at: Positive | None = None
    """value on `axis` at which trials are compared; required unless `axis` is step"""
    worthwhile: Positive = 0.01
    """smallest improvement over the baseline that matters"""
    published: Positive | None = None
    """published improvement to plan for, in `sweep plan`"""
    guards: list[str] = Field([])
    """METRIC:MARGIN: a better configuration must not be worse on METRIC by more than MARGIN;
    METRIC:MARGIN:min if smaller values are better"""
    second: SecondSpec | None = None
    """second objective: recorded and plotted against the score, but not part of the verdict"""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the score."""
        return (self.metric,) if isinstance(self.metric, str) else tuple(self.metric)

    @property
    def combined(self) -> Composite:
        """The rule that combines the metrics into one score."""
        if isinstance(self.composite, str):
            return Composite(self.composite)
        return Composite("weights", self.composite)

    @property
    def name(self) -> str:
        """The name of the score."""
        return self.metric if isinstance(self.metric, str) else self.combined.label(self.metric)

    @property
    def place(self) -> str:
        """The evaluations that make up a run's score, or the place on the axis, in words."""
        if self.at is not None:
            return f"at {self.axis} {self.at:.6g}"
        return f"last {counted(self.window, 'evaluation').removeprefix('1 ')}"

    @property
    def guarded(self) -> list[str]:
        """The metrics of the guards.

        Raises:
            ConfigError: a guard is invalid, or its direction is unclear.
        """
        if not self.guards:
            return []
        from dashboards.sources.scores import guards_of  # this import loads pandas

        guards = guards_of(self.guards, "objective.guards", score=self.name)
        return [guard.metric for guard in guards]

    @model_validator(mode="after")
    def _check(self) -> "ObjectiveSpec":
        if (self.axis == STEP) != (self.at is None):
            raise refusal(
                "axis-without-amount",
                "objective.axis and objective.at belong together: each trial is scored at a value "
                "on the axis that is fixed in advance",
                "write both, such as axis: tokens and at: 1e6, or leave both out",
            )
        if not isinstance(self.composite, str):
            weighted = set(self.composite)
            if weighted != set(self.metrics) or not sum(self.composite.values()) > 0:
                raise refusal(
                    "other-weights",
                    "objective.composite does not weight the metrics of objective.metric",
                    "write one weight for each: " + json.dumps(dict.fromkeys(self.metrics, 1)),
                )
        return self


class SearchSpec(Section):
    """The choice of configurations to try."""

    sampler: Literal["auto", "tpe", "random", "grid", "gp", "nsga2", "motpe"] = "auto"
    """Optuna sampler; auto: gp, or tpe with conditions or early stopping. nsga2 and motpe (TPE)
    search with both objectives of `objective.second`"""
    configurations: Annotated[int, Field(ge=0)] | None = None
    """number of configurations in addition to the baselines; null: the full grid"""
    tune_within: str | None = None
    """parameter whose values are tuned separately, each with its own budget of configurations"""
    seed: int = Field(0, ge=0)
    """seed of the sampler"""
    startup: Count | None = needs("sampler=auto|tpe|gp|nsga2|motpe", None)
    """random configurations before the sampler starts to learn, baselines included; for nsga2 the
    size of a generation"""
    warm_start: Annotated[list[str], AfterValidator(_unique)] = Field([])
    """earlier sweeps whose best configurations run after the baselines"""
    earlier_seeds: list[int] = Field([])
    """seeds of the sweeps of `warm_start`; written by `sweep run`"""

    @model_validator(mode="after")
    def _check(self) -> "SearchSpec":
        if self.configurations is None and self.sampler != "grid":
            raise refusal(
                "no-configuration-count",
                f"search.configurations is missing: {self.sampler} needs the number of "
                "configurations to propose",
                "set search.configurations, for example to 12",
            )
        return self


class AshaSpec(Section):
    """Asynchronous successive halving."""

    grace_period: Count = 3
    """evaluations before a trial may be stopped"""
    reduction_factor: Annotated[float, Field(gt=1)] = 2
    """one in N trials continues at each rung"""


class SchedulerSpec(Section):
    """Early stopping; none by default."""

    asha: AshaSpec | None = None
    """asynchronous successive halving"""


_SchedulerInput = Literal["none", "asha"] | SchedulerSpec | None


def _read_scheduler(value: Any) -> Any:
    if value is None or value == "none":
        return {}
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, dict):  # an empty `asha:` means its defaults
        return {key: {} if item is None else item for key, item in value.items()}
    return value


class LimitsSpec(Section):
    """Limits on time, devices and retries."""

    max_concurrent: Count | None = None
    """maximum number of concurrent trials; null: as many as fit"""
    max_failures: Annotated[int, Field(ge=0)] = 2
    """number of retries of a failing trial"""
    time_budget_s: Positive | None = None
    """stop the sweep after this time [s]"""
    gpu_hours: Positive | None = None
    """stop the sweep after this many GPU hours"""
    stall_timeout_s: Positive = 1800
    """a trial fails after this time without a step or an evaluation [s]"""


class ConfirmsSpec(Section):
    """The origin of the finalists, in a space that `sweep confirm` wrote."""

    sweep: str
    """name of the sweep that selected the finalists"""
    configurations: list[int]
    """numbers that the configurations in `baselines` have in that sweep"""
    tune_within: str | None = None
    """`search.tune_within` of that sweep: the parameter whose values are the arms"""


class SweepSpec(Section):
    """A validated search space."""

    docs_hint: ClassVar[str] = "docs/reference/search_space.md lists every key"

    name: str
    """name of the sweep: its folder and its MLflow experiment"""
    trainer: Annotated[
        LoptuneProgram | None,
        BeforeValidator(
            lambda value: {"preset": value} if isinstance(value, str) else value,
            str | LoptuneProgram,
        ),
    ] = None
    """configuration that every trial of loptune's own trainer starts from"""
    external: CommandProgram | None = Field(None, alias="program")
    """your own command or function"""
    objective: ObjectiveSpec = ObjectiveSpec()
    """the number to optimize"""
    parameters: dict[str, ParameterSpec] = Field({})
    """key of the trainer or program, or switch -> range"""
    baselines: list[ValueMapping] = Field([])
    """configurations that run first; the first is the baseline of all comparisons"""
    search: SearchSpec
    """which configurations are tried"""
    seeds: Annotated[list[Seed], AfterValidator(_unique)] = Field([0], min_length=1)
    """every configuration runs once per seed"""
    scheduler: Annotated[SchedulerSpec, BeforeValidator(_read_scheduler, _SchedulerInput)] = (
        SchedulerSpec()
    )
    """none or asha"""
    resources: ResourcesSpec = ResourcesSpec()
    """resources of one trial"""
    limits: LimitsSpec = LimitsSpec()
    """limits of the sweep"""
    confirms: ConfirmsSpec | None = None
    """sweep whose finalists these are; written by `sweep confirm`"""

    @property
    def program(self) -> Program:
        """The program that a trial runs."""
        program = self.trainer or self.external
        assert program is not None, "neither trainer nor program is set"
        return program

    def with_program(self, program: Program) -> "SweepSpec":
        """Return the space with another program of the same kind."""
        return self.model_copy(update={program.space_key: program})

    def with_guards(self, guards: list[str]) -> "SweepSpec":
        """Return the space with other guards."""
        objective = self.objective.model_copy(update={"guards": guards})
        return self.model_copy(update={"objective": objective})

    @property
    def searched(self) -> list[str]:
        """The program's searched keys."""
        return [key for key in self.parameters if self.program.has(key)]

    def values_of_trials(self, *, listed: bool = False) -> dict[str, list[Any]]:
        """Return the values of each searched key over all trials, baselines included, without
        repetitions; for a range, only its first and its last value.

        Args:
            listed: whether to return every value of a range that has steps.
        """
        found: dict[str, list[Any]] = {key: [] for key in self.searched}
        if self.search.configurations != 0:
            below = self.program.values({}, self.searched)
            for key in self.searched:
                parameter = self.parameters[key]
                options = parameter.options if listed else None
                found[key] += parameter.extremes if options is None else options
                if parameter.when:
                    inactive = parameter.otherwise if parameter.has_else else below[key]
                    _add_new(found[key], inactive)
        space = Space(self.parameters)
        for point in space.distinct(self.baselines, self.program).values():
            for key, value in space.resolve(point, self.program).items():
                _add_new(found[key], value)
        return found

    @property
    def directions(self) -> list[Mode]:
        """Whether larger or smaller values of each recorded objective are better."""
        objective = self.objective
        second = objective.second
        return [objective.mode] if second is None else [objective.mode, second.direction]

    @property
    def experiment(self) -> str:
        """The MLflow experiment of the sweep and its trials."""
        return self.program.tracking_settings.experiment or self.name

    def reported(self, configuration: int) -> int:
        """Return a configuration's number in reports and in MLflow; a finalist keeps the number
        from its search.
        """
        if self.confirms is None:
            return configuration
        return self.confirms.configurations[configuration]

    @property
    def adaptive(self) -> bool:
        """Whether scores decide which configurations are tried, stopped or compared; scores on such
        seeds are not evidence.
        """
        search = self.search
        follows = search.sampler not in ("random", "grid") or search.tune_within is not None
        return (follows and search.configurations != 0) or self.scheduler != SchedulerSpec()

    @property
    def used_seeds(self) -> set[int]:
        """Seeds whose scores guided the search: its own seeds, and the seeds of its warm-start
        sweeps.
        """
        return {*self.seeds, *self.search.earlier_seeds}

    @property
    def evaluations(self) -> int | None:
        """Number of evaluations of the longest trial after its first step; None if it is unknown,
        for example because it depends on the data.
        """
        return self.program.count_evaluations(self.values_of_trials())

    @model_validator(mode="after")
    def _check_program(self) -> "SweepSpec":
        if (self.trainer is None) == (self.external is None):
            raise refusal(
                "trainer-or-program",
                "set either trainer or program, which define what a trial runs",
                "write trainer: PRESET, or program: {command: [...]}",
            )
        return self

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not is_name(name):
            raise refusal("invalid-name", f"a name must have {NAME_RULE}")
        return name
