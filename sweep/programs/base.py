"""The interface of a program: the code that a trial runs, and the information that a sweep needs
about it.

`Program` combines four interfaces, one per caller: the search space; tables and reports, which also
need to know the default baseline; the plan, whose answers are optional; and the driver and its
ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self

from dashboards.statistics.scoring import Scoring
from loptune.errors import ConfigError
from loptune.files import Record
from loptune.section import Count, NonNegative, Section
from loptune.yaml_document import YamlDocument
from trainer.config.tracking import TrackingConfig
from trainer.planning.advice import Advice as Advice
from trainer.planning.advice import ineffective_key_warnings as ineffective_key_warnings
from trainer.planning.memory import Footprint as Footprint
from trainer.types import RunContext

ABSENT: Final = object()  # marks a key that a configuration does not have
Overrides = Mapping[str, Any]  # searched key -> its value in one configuration
# searched key -> the values that trials can have; for a range, its two bounds
Values = Mapping[str, Sequence[Any]]


class ResourcesSpec(Section):
    """Resources of one trial, excluding the process that waits for the ranks."""

    gpus_per_trial: NonNegative = 0
    """GPUs per trial, one per worker; below 1: a fraction of one GPU"""
    workers_per_trial: Count = 1
    """rank processes"""
    cpus_per_worker: Count = 1
    """CPU cores per rank"""

    @property
    def gpus_per_worker(self) -> float:
        """GPUs of one rank."""
        return self.gpus_per_trial / self.workers_per_trial

    @property
    def cpus_per_trial(self) -> int:
        """CPU cores of all ranks of a trial."""
        return self.workers_per_trial * self.cpus_per_worker

    def bundles(self) -> list[dict[str, float]]:
        """Return the resources of each rank, as Ray reserves them."""
        bundle: dict[str, float] = {"CPU": self.cpus_per_worker}
        if self.gpus_per_worker:
            bundle["GPU"] = self.gpus_per_worker
        return [dict(bundle) for _ in range(self.workers_per_trial)]

    @property
    def devices(self) -> float:
        """GPUs of a trial, or its CPUs if it has no GPU."""
        return self.gpus_per_trial or self.cpus_per_trial


class SecondObjective(Protocol):
    """A rule that turns the records of a trial into its value of the second objective."""

    def value(self, records: Sequence[Record]) -> float:
        """Return the value so far; NaN if there is none."""

    def check(self, value: float) -> None:
        """Raise ConfigError if a trial has ended without a value."""


@dataclass(frozen=True)
class Assignment:
    """The trial assigned to a rank."""

    trial: str  # name of the trial, such as c003-s0
    config: Any  # as returned by `Program.configure`
    context: RunContext
    stop_file: Path  # if it exists, every rank stops at the next training step
    credentials: Path = Path()  # credentials file, if the sweep runs on a cluster
    # on a single machine: file with the environment of the user who started the sweep
    environment: Path = Path()
    inputs: tuple[Path, ...] = ()  # on a cluster: paths that every node must see
    # relative paths and reward modules of the configuration are looked up here
    working_dir: Path = Path()
    stall_timeout_s: float = 1800
    scoring: Scoring | None = None  # None: the last evaluations of the context's metric
    second: SecondObjective | None = None

    @property
    def scored_by(self) -> Scoring:
        """The rule that turns the trial's evaluations into its score."""
        return self.scoring or Scoring((self.context.metric,), self.context.window)


class TrialRun(Protocol):
    """One trial in a rank process."""

    stopped: bool  # whether it stopped because the stop file exists

    @property
    def step(self) -> int:
        """Training steps so far."""

    @property
    def total_steps(self) -> int:
        """Training steps of the whole trial; 0 if unknown."""

    @property
    def done(self) -> bool:
        """Whether the trial has finished."""

    @property
    def history(self) -> Mapping[int, float]:
        """Training step -> value of the metric that marks an evaluation, without abandoned steps;
        empty on ranks without a record.
        """

    def resume(self) -> int:
        """Resume from the trial's folder and return the step."""

    def train_until_evaluation(self) -> Mapping[str, float]:
        """Run to the next evaluation and return its metrics with ``step``; only ``step`` if the
        trial was stopped.
        """

    def close(self, status: str = "FINISHED") -> Any:
        """End the trial's record with a status: FINISHED, FAILED or KILLED."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The checkpoints that a trial keeps in its folder [bytes; None: unknown]."""

    every_steps: int
    kept: int  # number of checkpoints of a running trial
    running_bytes: int | None  # size of one checkpoint of a running trial
    ended_bytes: int | None  # total size of the checkpoints that an ended trial keeps


@dataclass(frozen=True)
class Sample:
    """Result of sampling the initial policy (`sweep plan --sample`)."""

    lines: list[str]
    error: float  # standard error of one evaluation
    advice: list[Advice]
    json: dict[str, Any]


class SearchableProgram(Section, ABC):
    """Interface for the search space: the existing keys and their valid values."""

    space_key: ClassVar[str]  # key of the program in the search space

    def resolved(self, folder: Path, document: YamlDocument) -> Self:
        """Return the program as stored in ``space.lock.yaml``; file paths are relative to
        ``folder``.

        Raises:
            ConfigError: the settings of the program are invalid or contradict each other.
            MissingError: a named file does not exist.
        """
        return self

    @abstractmethod
    def keys(self) -> list[str]:
        """Return the keys that may be searched."""

    @abstractmethod
    def has(self, key: str) -> bool:
        """Return whether the program has this key. Any other parameter is a switch, which only
        conditions use.
        """

    @abstractmethod
    def check_key(self, key: str, document: YamlDocument) -> None:
        """Raise ConfigError for a key that cannot be searched."""

    @abstractmethod
    def check_metric(self, metric: str, key: str, searched: Values, document: YamlDocument) -> None:
        """Raise ConfigError for a metric that the program does not measure, or a parameter that
        changes how it is measured; ``key`` is the metric's key below ``objective``.
        """

    @abstractmethod
    def check_machine(
        self,
        searched: Values,
        resources: ResourcesSpec,
        max_concurrent: int | None,
        document: YamlDocument,
    ) -> None:
        """Raise ConfigError for resources that the program cannot use. ``max_concurrent`` is the
        maximum number of concurrent trials, None for no limit.
        """

    @abstractmethod
    def with_settings(self, settings: Overrides, command: Sequence[str] | None) -> Self:
        """Return the program with other defaults, and with a different command line if one is
        given.

        Raises:
            ConfigError: the program has no such key, or no command line.
        """

    @abstractmethod
    def values(self, overrides: Overrides, keys: Sequence[str]) -> Overrides:
        """Return the values of keys with some overrides applied, without validation; ABSENT for a
        missing key.
        """

    @abstractmethod
    def configure(self, overrides: Overrides) -> Any:
        """Return the configuration of a trial.

        Raises:
            ConfigError: a value is invalid; its key is the ``key`` of the error.
        """

    def advice(self, searched: Values) -> Iterator[Advice]:
        """Yield advice on settings that are valid but rarely intended."""
        yield from ()


class DescribedProgram(SearchableProgram):
    """Interface for tables, reports and comparisons: names, and which configuration is the default
    baseline.
    """

    always_shown: ClassVar[tuple[str, ...]] = ()  # keys that tables always show
    rule_keys: ClassVar[tuple[str, ...]] = ()  # keys that are part of the update rule's name
    # axis, such as tokens -> metrics whose sum is the amount that a step uses
    amounts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # whether the seed determines the problems, their order and the initial model in every
    # configuration
    seeds_are_blocks: ClassVar[bool] = False

    @abstractmethod
    def setting(self) -> tuple[str, str]:
        """Return the names of the model and the task."""

    @abstractmethod
    def rule_of(self, resolved: Overrides) -> tuple[str, str]:
        """Return the names of the algorithm (empty if the program has none) and of the update rule
        of a configuration.
        """

    def flat(self, resolved: Overrides) -> Overrides:
        """Return the searched values of a configuration, one per column."""
        return dict(resolved)

    def is_plain(self, resolved: Overrides) -> bool:
        """Return whether a configuration is the baseline if none is listed: all of its
        `always_shown` keys are off. False for a program without such keys.
        """
        shown = self.values(resolved, self.always_shown)
        return bool(shown) and not any(shown.values())

    @abstractmethod
    def scores_like(self, other: "Program") -> bool:
        """Return whether another program's scores have the same seed noise."""


class PlannableProgram(Section, ABC):
    """Interface for a plan. Every answer is optional: the defaults mean "unknown". The parameter
    ``possible`` of the methods is searched key -> the values that trials can have.
    """

    forecast_needs: ClassVar[str]  # advice if a plan cannot estimate the length of a trial
    # whether it can estimate the sizes of the model and of checkpoints
    estimates_sizes: ClassVar[bool] = False

    def steps(self, possible: Values) -> tuple[int | None, bool]:
        """Return the training steps of the longest trial (None if unknown), and whether a searched
        key changes them.
        """
        return None, False

    def count_evaluations(self, possible: Values) -> int | None:
        """Return the number of evaluations in the longest trial, without the evaluation before
        training; None if unknown.
        """
        return None

    def score_step(self, metric: str) -> float | None:
        """Return how much one more correct answer changes an evaluation score; None if unknown."""
        return None

    def checkpoints(self, on_gpu: bool) -> Checkpoints | None:
        """Return the checkpoints that a trial keeps; None if the program manages its own.

        Args:
            on_gpu: whether the trials use GPUs.
        """
        return None

    def memory(self, resources: ResourcesSpec) -> Footprint | None:
        """Estimate the memory of a trial; None if it is unknown or small."""
        return None

    def same_step_time(self, other: "Program") -> bool:
        """Return whether a training step of another program takes the same time."""
        return False

    def sample(self, possible: Values, problems: int) -> Sample:
        """Sample some problems as a trial would before its first step.

        Raises:
            ConfigError: the program cannot be sampled from.
        """
        raise ConfigError(
            "--sample works only for loptune's own trainer",
            "command line, --sample",
            "remove --sample",
            code="no-sample",
        )


class RunnableProgram(Section, ABC):
    """Interface for the driver and the ranks: the code to run, its files and its records."""

    # whether an evaluation on held-out problems replaces the search's evaluation
    held_out_instead: ClassVar[bool] = False

    @property
    @abstractmethod
    def tracking_settings(self) -> TrackingConfig:
        """MLflow settings of the trials."""

    @abstractmethod
    def with_tracking(self, **changes: Any) -> Self:
        """Return the program with changed `tracking_settings`."""

    @abstractmethod
    def check_early(
        self, searched: Values, resources: ResourcesSpec, metrics: Sequence[str]
    ) -> None:
        """Check everything that could prevent a trial from running, before Ray starts.

        Raises:
            UserError: a file, module, setting or metric is missing or invalid.
        """

    @abstractmethod
    def files(self, searched: Values) -> Iterator[tuple[Path, str]]:
        """Yield the files that must not change while the sweep runs, each with its role."""

    def paths(self, searched: Values) -> Iterator[Path]:
        """Yield the files and folders that every node must see."""
        return (path for path, _ in self.files(searched))

    @abstractmethod
    def save(self, overrides: Overrides, path: Path) -> None:
        """Write a trial's configuration to a file that `launch_command` runs."""

    @abstractmethod
    def launch_command(self, overrides: Overrides, path: Path, workers: int) -> str:
        """Return the command that runs one configuration outside a sweep.

        Args:
            overrides: searched key -> value of the configuration.
            path: file that `save` wrote.
            workers: number of ranks.
        """

    @abstractmethod
    def start(self, assignment: Assignment) -> TrialRun:
        """Start a trial in a rank process."""

    def shares_process(self, before: Any, after: Any) -> bool:
        """Return whether a rank can run a second configuration in the same process.

        Args:
            before: configuration of the rank's previous trial.
            after: configuration of its next trial.
        """
        return True

    @abstractmethod
    def held_out_run(self, metric: str, test: str | None) -> Self:
        """Return the program that also, or only, evaluates on held-out problems.

        Args:
            metric: metric of the objective.
            test: file of held-out problems; None: the problems that the program declares.

        Raises:
            ConfigError: there are no held-out problems, or ``test`` cannot be used.
        """

    @property
    def is_held_out(self) -> bool:
        """Whether the program evaluates only on held-out problems."""
        return False


def seed_searched(key: str, where: str) -> ConfigError:
    """Return the error for a seed among the searched parameters."""
    return ConfigError(
        "the seed cannot be a search parameter",
        where,
        "write seeds: [0, 1]",
        key=key,
        code="seed-searched",
    )


def searched_and_set(key: str, setter: str, where: str, code: str) -> ConfigError:
    """Return the error for a searched key that another part of the space sets.

    Args:
        key: the searched key.
        setter: the other part, as the end of "is both searched and".
        where: file and line of the key.
        code: code of the error.
    """
    return ConfigError(
        f"{key} is both searched and {setter}", where, "remove one of the two", key=key, code=code
    )


class Program(DescribedProgram, PlannableProgram, RunnableProgram):
    """A program that implements all four interfaces."""
