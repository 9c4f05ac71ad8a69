"""One trial, of a sweep or of any program, and the single ranking of scores.

A sweep fills `TrialRecord` from its event log, `sweep judge` from a table. Sampler, status, export,
report and verdict read it. Imports nothing heavy: a driver and every command load this module.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from loptune.score import score

FIELDS = (  # columns of `TrialSet.table` other than parameters; label comes last
    "trial", "configuration", "seed", "state", "score", "second", "test", "step", "hours",
    "minutes", "algorithm", "rule", "arm", "reason", "label",
)  # fmt: skip

# curves that every run of the trainer logs, and that reports show
TRAINING_CURVES = (
    "policy/kl",
    "policy/entropy",
    "policy/clip_fraction",
    "rollout/completion_length",
    "optim/grad_norm",
    "reward/format_failures",
    "reward/timeouts",
    "reward/errors",
)
TEST_SET = "test"  # held-out problems; only `sweep confirm` evaluates on them
Mode = Literal["max", "min"]
EndState = Literal["COMPLETE", "PRUNED", "FAIL"]
# KILLED: started, but neither running nor ended
State = Literal["WAITING", "RUNNING", "KILLED", "COMPLETE", "PRUNED", "FAIL"]
_END_STATES = ("COMPLETE", "PRUNED", "FAIL")


def joint_state(states: Iterable[State]) -> State:
    """Return the state of a score that combines the scores of several trials: FAIL if one of them
    failed, else the first state other than COMPLETE.
    """
    found = list(dict.fromkeys(states))
    if "FAIL" in found:
        return "FAIL"
    return next((state for state in found if state != "COMPLETE"), "COMPLETE")


_Name = TypeVar("_Name", bound=Hashable)


def sign_of(mode: Mode) -> int:
    """Return 1 if larger scores are better, else -1. Larger is always better for a score times its
    sign.
    """
    return 1 if mode == "max" else -1


@dataclass(frozen=True)
class Objective:
    """The score of a trial: the mean of the last ``window`` values of ``metric``, unless trials are
    compared at an amount of an axis.
    """

    metric: str = "eval/accuracy"
    mode: Mode = "max"
    window: int = 3
    worthwhile: float = 0.01  # smallest improvement that matters
    held_out: bool = False  # whether the metric itself is measured on held-out problems
    benchmarks: tuple[str, ...] = ()  # metrics of a composite
    second: str | None = None  # second objective, which decides no verdict
    second_mode: Mode = "min"

    @property
    def held_out_metric(self) -> str:
        """The objective metric on the held-out problems."""
        if self.held_out:
            return self.metric
        metric = self.benchmarks[0] if self.benchmarks else self.metric
        return "/".join([*metric.split("/")[:2], TEST_SET])

    @property
    def sign(self) -> int:
        """1 if larger scores are better, -1 if smaller ones are."""
        return sign_of(self.mode)


class Directed(Protocol):
    """Protocol of anything with an optimization direction."""

    @property
    def mode(self) -> Mode:
        """``max`` or ``min``."""


def best_first(scores: Mapping[_Name, float], objective: Directed) -> list[_Name]:
    """Return the names by score, best first; names with equal scores keep their order."""
    return sorted(scores, key=lambda name: -sign_of(objective.mode) * scores[name])


@dataclass(frozen=True)
class Curve:
    """Values of a metric by training step, or by the amount of another axis; ascending."""

    steps: tuple[float, ...]
    values: tuple[float, ...]

    def score(self, window: int) -> float:
        """Return the score of a trial with this curve: the mean of its last ``window`` finite
        values; NaN if there is none.
        """
        return score(dict(zip(self.steps, self.values, strict=True)), window)


@dataclass(frozen=True)
class TrialRecord:
    """One trial: a configuration trained with a seed."""

    name: str
    configuration: str  # number of the configuration
    seed: str
    state: State = "COMPLETE"
    # final score, or last score of a stopped trial; NaN if it failed or has none
    score: float = math.nan
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""  # why it failed
    by_settings: bool = False  # whether its settings or its program explain the failure
    step: float = math.nan  # training step of the score; in progress tables, of the last record
    total_steps: int | None = None  # training steps of the whole trial; None if unknown
    time: float = math.nan  # end time, in seconds since the epoch
    algorithm: str = ""  # advantage and loss of the update rule
    rule: str = ""  # the update rule in words
    arm: str = ""  # an element of `Results.arms`
    task: str = ""  # name of the task, for runs on several tasks
    hours: float = math.nan  # device hours of recorded steps and evaluations
    test: float = math.nan  # score on the held-out problems
    second: float = math.nan  # second objective, of a sweep that records one
    curves: Mapping[str, Curve] = field(default_factory=dict)
    # latest value of each tokens/* metric
    latest: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)  # benchmark or guard -> score
    # growing column, such as tokens -> its amount at the point of comparison
    costs: Mapping[str, float] = field(default_factory=dict)
    # fraction correct per problem, over the evaluations that make up the score
    solved: tuple[float, ...] | None = None

    @property
    def ended(self) -> bool:
        """Whether the trial has ended: complete, stopped early or failed."""
        return self.state in _END_STATES
