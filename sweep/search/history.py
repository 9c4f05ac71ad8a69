"""Replay a sweep's configurations and results from its event log."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dashboards.statistics.front import front
from dashboards.trial import Directed, TrialRecord, best_first, sign_of
from loptune.files import Record
from loptune.score import mean
from sweep.space.points import Parameters
from sweep.space.spec import SweepSpec

_ConfigurationState = Literal["RUNNING", "COMPLETE", "PRUNED", "FAIL"]

# Values of a record's "event".
PROPOSED = "configuration"
STARTED = "trial"
ENDED = "result"
RETRIED = "retry"  # cancels the result of a trial
PLAN = "plan"  # design of a sequential confirmation, see sweep/winner/rounds.py
ANALYSIS = "analysis"  # results of an interim analysis


@dataclass(frozen=True)
class TrialKey:
    """One trial of the sweep: a configuration with one seed."""

    configuration: int
    seed: int

    @property
    def name(self) -> str:
        """Folder and run name, the same across restarts."""
        return f"c{self.configuration:03d}-s{self.seed}"


@dataclass(frozen=True)
class Configuration:
    """A point of the search space with its results so far."""

    number: int
    parameters: Parameters  # the active parameters, switches included
    resolved: Parameters  # every searched key of the program with its value
    fingerprint: str
    time: float  # seconds since the epoch
    results: Mapping[int, TrialRecord] = field(default_factory=dict)  # ended trials by seed
    # whether no further seeds are needed, because the sequential confirmation has decided on it
    retired: bool = False

    def open_seeds(self, seeds: Iterable[int]) -> list[int]:
        """Return the seeds that have no result, in their order."""
        return [seed for seed in seeds if seed not in self.results]


@dataclass(frozen=True)
class ConfigurationOutcome:
    """State and score of a configuration over all its seeds."""

    state: _ConfigurationState
    score: float | None = None
    second: float | None = None
    step: int | None = None
    time: float | None = None  # seconds since the epoch


def replay(records: Iterable[Record]) -> list[Configuration]:
    """Return the configurations in order of their numbers, with their results."""
    configurations: list[Configuration] = []
    for record in records:
        if record.get("event") == PROPOSED:
            configurations.append(configuration_of(record))
        elif record.get("event") == ENDED:
            add_result(configurations, record)
        elif record.get("event") == RETRIED:
            _take_back(configurations, record)
        elif record.get("event") == ANALYSIS:
            for result in record["results"]:
                number = int(result["configuration"])
                retired = result["outcome"] != "undecided"
                configurations[number] = replace(configurations[number], retired=retired)
    return configurations


def configuration_of(record: Record) -> Configuration:
    """Return the configuration that a record proposes."""
    fields = ("parameters", "resolved", "fingerprint", "time")
    return Configuration(record["configuration"], **{name: record[name] for name in fields})


def add_result(configurations: list[Configuration], record: Record) -> None:
    """Add one trial's end to its configuration."""
    configuration = configurations[record["configuration"]]
    trial = replace(
        open_trial(configuration, record["seed"]),
        state=record["state"],
        score=_number(record["score"]),
        second=_number(record.get("second")),
        step=_number(record["step"]),
        reason=record["reason"],
        by_settings=record.get("by_settings", False),
        time=record["time"],
    )
    results = {**configuration.results, record["seed"]: trial}
    configurations[configuration.number] = replace(configuration, results=results)


def open_trial(configuration: Configuration, seed: int) -> TrialRecord:
    """Return a trial that has not ended."""
    return TrialRecord(
        name=TrialKey(configuration.number, seed).name,
        configuration=str(configuration.number),
        seed=str(seed),
        state="WAITING",
        parameters=configuration.resolved,
    )


def _number(value: float | None) -> float:
    """Return a number from the event log; NaN for null."""
    return math.nan if value is None else value


def _take_back(configurations: list[Configuration], record: Record) -> None:
    configuration = configurations[record["configuration"]]
    results = dict(configuration.results)
    results.pop(record["seed"], None)
    configurations[configuration.number] = replace(configuration, results=results)


def outcome(configuration: Configuration, seeds: Sequence[int]) -> ConfigurationOutcome:
    """Return the state and score of a configuration.

    It is RUNNING until all seeds have ended. Then it is FAIL if a seed failed (the mean of the
    other seeds would favor configurations that fail on hard seeds), PRUNED if a seed was stopped
    early (score: the mean of the last scores; step: the earliest), and COMPLETE otherwise (score:
    the mean). `second` is the mean over the seeds; None if a seed has no value.
    """
    if configuration.open_seeds(seeds):
        return ConfigurationOutcome("RUNNING")
    results = [configuration.results[seed] for seed in seeds]
    states = {result.state for result in results}
    time = max(result.time for result in results)
    if "FAIL" in states:
        return ConfigurationOutcome("FAIL", time=time)
    scores = [result.score for result in results]  # finite for COMPLETE and PRUNED trials
    steps = [int(result.step) for result in results if not math.isnan(result.step)]
    state: _ConfigurationState = "COMPLETE"
    if "PRUNED" in states:
        state = "PRUNED"
    seconds = [result.second for result in results if math.isfinite(result.second)]
    second = None
    if len(seconds) == len(results):
        second = mean(seconds)
    return ConfigurationOutcome(state, mean(scores), second, min(steps, default=None), time)


def failed_by_settings(configuration: Configuration) -> bool:
    """Return whether a seed failed in a way that the configuration's own settings explain, see
    `sweep.search.trial_report.Failure`.
    """
    return any(result.by_settings for result in configuration.results.values())


def ranked(
    configurations: Iterable[Configuration], seeds: Sequence[int], objective: Directed
) -> list[Configuration]:
    """Return the configurations that are COMPLETE on all seeds, best mean score first;
    configurations with equal scores are in order of their numbers.
    """
    complete: dict[int, Configuration] = {}
    scores: dict[int, float] = {}
    for configuration in configurations:
        result = outcome(configuration, seeds)
        if result.state == "COMPLETE" and result.score is not None:
            complete[configuration.number] = configuration
            scores[configuration.number] = result.score
    return [complete[number] for number in best_first(scores, objective)]


def front_numbers(spec: SweepSpec, configurations: Iterable[Configuration]) -> list[int]:
    """Return the complete configurations on the Pareto front of both objectives, ordered by the
    first objective; empty if the sweep records no second objective.
    """
    if spec.objective.second is None:
        return []
    points = {}
    for configuration in configurations:
        result = outcome(configuration, spec.seeds)
        if result.state != "COMPLETE" or result.score is None or result.second is None:
            continue
        points[configuration.number] = (result.score, result.second)
    first, second = map(sign_of, spec.directions)
    return front(points, (first, second))


def best(
    configurations: Iterable[Configuration], seeds: Sequence[int], objective: Directed
) -> Configuration | None:
    """Return the first of `ranked`; None if no configuration is complete."""
    return next(iter(ranked(configurations, seeds, objective)), None)
