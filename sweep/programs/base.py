"""A program: what a trial of a sweep runs, and all that a sweep knows of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self

from sweep.programs.resources import ResourcesSpec
from trainer.config.tracking import TrackingConfig
from trainer.config.yaml_document import YamlDocument
from trainer.errors import ConfigError
from trainer.planning.advice import Advice as Advice
from trainer.planning.advice import advise_idle as advise_idle
from trainer.planning.memory import Footprint as Footprint
from trainer.section import Section
from trainer.types import RunContext

ABSENT: Final = object()  # the value of a key that a configuration lacks
Overrides = Mapping[str, Any]  # searched key -> its value in one configuration
Values = Mapping[str, Sequence[Any]]  # searched key -> its values; of a range its ends


@dataclass(frozen=True)
class Assignment:
    """The trial that a rank is to run."""

    trial: str  # c003-s0
    config: Any  # of `Program.configure`
    context: RunContext
    stop_file: Path  # its existence asks every rank to stop at the next training step
    credentials: Path = Path()  # a file of credentials, where the sweep runs on a cluster
    inputs: tuple[Path, ...] = ()  # on a cluster: what each node has to see
    # relative paths and reward modules of the configuration are looked up here
    working_dir: Path = Path()
    metric: str = "eval/accuracy"  # the objective
    stall_timeout_s: float = 1800


class TrialRun(Protocol):
    """One trial in a rank process."""

    stopping: bool  # whether the stop file ends it early

    @property
    def step(self) -> int:
        """Training steps so far."""

    @property
    def total_steps(self) -> int:
        """Training steps of the whole trial; 0 where the program does not tell."""

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""

    def resume(self) -> int:
        """Go on from what the trial's folder holds; returns the step."""

    def run_period(self) -> Mapping[str, float]:
        """Run to the next evaluation and return its metrics with ``step``; only ``step`` where it
        was stopped.
        """

    def close(self, status: str = "FINISHED") -> Any:
        """End the trial's record: FINISHED, FAILED or KILLED."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints that a trial keeps in its folder [bytes; None: unknown]."""

    every_steps: int
    kept: int  # of a trial that runs
    whole: int | None  # one of a trial that runs
    ended: int | None  # all that a trial leaves


@dataclass(frozen=True)
class Sample:
    """What a program's start says about a plan (`sweep plan --sample`)."""

    lines: list[str]
    error: float  # of an evaluation
    advice: list[Advice]
    json: dict[str, Any]


class Program(Section, ABC):
    """One kind of program. Methods that are not abstract know nothing until a subclass does."""

    space_key: ClassVar[str]  # of the search space, that holds the program
    forecast_needs: ClassVar[str]  # what to do where a plan cannot tell how long a trial takes
    estimates_sizes: ClassVar[bool] = False  # of model and checkpoints
    # whether held-out problems take the place of the others
    held_out_instead: ClassVar[bool] = False
    always_shown: ClassVar[tuple[str, ...]] = ()  # keys in tables whether searched or not

    @property
    @abstractmethod
    def settings(self) -> TrackingConfig:
        """How trials are recorded in MLflow."""

    @abstractmethod
    def tracked(self, **changes: Any) -> Self:
        """Return the program with changed `settings`."""

    def resolved(self, folder: Path, document: YamlDocument) -> Self:
        """Return the program as ``space.lock.yaml`` keeps it; files are named relative to
        ``folder``.
        """
        return self

    @abstractmethod
    def keys(self) -> list[str]:
        """Return the keys that may be searched."""

    @abstractmethod
    def has(self, key: str) -> bool:
        """Return whether a parameter is the program's; another one is a switch, which serves
        conditions.
        """

    @abstractmethod
    def check_key(self, key: str, document: YamlDocument) -> None:
        """Refuse a parameter of the program that cannot be searched."""

    @abstractmethod
    def check_metric(self, metric: str, searched: Values, document: YamlDocument) -> None:
        """Refuse an objective that the program does not measure, and parameters that change what it
        measures.
        """

    @abstractmethod
    def check_machine(
        self,
        searched: Values,
        resources: ResourcesSpec,
        max_concurrent: int | None,
        document: YamlDocument,
    ) -> None:
        """Refuse resources that the program cannot use."""

    @abstractmethod
    def check_early(self, searched: Values, resources: ResourcesSpec, metric: str) -> None:
        """Look for whatever would keep a trial from running, before Ray starts."""

    @abstractmethod
    def values(self, overrides: Overrides, keys: Sequence[str]) -> Overrides:
        """Return the values of keys beside some overrides, not validated; ABSENT where there is
        none.
        """

    @abstractmethod
    def configure(self, overrides: Overrides) -> Any:
        """Return the configuration of a trial.

        Raises:
            ConfigError: a value is refused; ``key`` names whose.
        """

    @abstractmethod
    def save(self, overrides: Overrides, path: Path) -> None:
        """Write the configuration of a trial, which `launch_line` runs."""

    @abstractmethod
    def launch_line(self, overrides: Overrides, path: Path, workers: int) -> str:
        """Return the command that runs a configuration alone."""

    @abstractmethod
    def start(self, assignment: Assignment) -> TrialRun:
        """Begin a trial in a rank process."""

    def shares_process(self, before: Any, after: Any) -> bool:
        """Return whether a rank that ran a configuration can run another."""
        return True

    def flat(self, resolved: Overrides) -> Overrides:
        """Return the searched values of a configuration, a column each."""
        return dict(resolved)

    @abstractmethod
    def rule_of(self, resolved: Overrides) -> tuple[str, str]:
        """Return the algorithm and the update rule of a configuration in words."""

    def is_plain(self, resolved: Overrides) -> bool:
        """Return whether a configuration is the baseline of a search that lists none: all that is
        always shown is off.
        """
        shown = self.values(resolved, self.always_shown)
        return bool(shown) and not any(shown.values())

    @abstractmethod
    def setting(self) -> tuple[str, str]:
        """Return model and task in words."""

    @abstractmethod
    def files(self, searched: Values) -> Iterator[tuple[Path, str]]:
        """Yield the files that must not change while the sweep runs, each with its role."""

    def paths(self, searched: Values) -> Iterator[Path]:
        """Yield the files and folders that each node has to see."""
        return (path for path, _ in self.files(searched))

    @abstractmethod
    def held_out_run(self, metric: str, test: str | None) -> Self:
        """Return the program that also, or only, evaluates on held-out problems.

        Raises:
            ConfigError: there are none, or ``test`` cannot be used.
        """

    @property
    def is_held_out(self) -> bool:
        """Whether held-out problems are all that it evaluates on."""
        return False

    def steps(self, possible: Values) -> tuple[int | None, bool]:
        """Return the training steps of the longest trial, and whether the search decides them."""
        return None, False

    @abstractmethod
    def count_evaluations(self, possible: Values) -> int | None:
        """Return the evaluations of the longest trial after its first step."""

    def checkpoints(self, on_gpu: bool) -> Checkpoints | None:
        """Return what a trial keeps in its folder; None where the program looks after that
        itself.
        """
        return None

    def memory(self, resources: ResourcesSpec) -> Footprint | None:
        """Estimate the memory of a trial."""
        return None

    @abstractmethod
    def is_like(self, other: "Program") -> bool:
        """Return whether scores of another program's trials vary as these do."""

    def takes_steps_like(self, other: "Program") -> bool:
        """Return whether a training step of another program takes as long."""
        return False

    def advice(self, searched: Values) -> Iterator[Advice]:
        """Yield advice on settings that are allowed and seldom meant."""
        yield from ()

    def sample(self, possible: Values, problems: int) -> Sample:
        """Sample some problems as a trial would before its first step.

        Raises:
            ConfigError: the program cannot be sampled from.
        """
        raise ConfigError(
            "--sample works only for loptune's own trainer",
            "command line, --sample",
            "leave it out",
        )
