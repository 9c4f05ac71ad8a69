"""A sweep as its report sees it: tables of trials and of their curves, independent of where they were recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboards.labels import configuration_labels
from trainer.metrics.declared import METRICS

CURVES = ("policy/kl", "policy/entropy", "policy/clip_fraction", "rollout/completion_length", "optim/grad_norm")
AUDIT = ("reward/format_failures", "reward/timeouts", "reward/errors")
TEST_SET = "test"  # the sealed problems: only runs that confirm a sweep are evaluated on them
# Keys of the controls, in the order of `variant_name`, and the value that turns each off.
CONTROLS = {
    "algorithm.token_filter": "none",
    "algorithm.lopti_split": "probability",
    "algorithm.lopti_order": "low_first",
    "algorithm.entropy_coef": "0",
}


@dataclass(frozen=True)
class Solved:
    """The share of correct completions of every problem, over the evaluations that make up the score."""

    accuracy: NDArray[np.float64]  # [P]
    step: float  # by which the score of one evaluation can change: 1 / (problems x completions)


@dataclass(frozen=True)
class Objective:
    """The score of a trial: the mean of the last ``window`` values of ``metric``."""

    metric: str = "eval/accuracy"
    mode: Literal["max", "min"] = "max"
    window: int = 3
    worthwhile: float = 0.01  # smallest gain that matters

    @property
    def sealed(self) -> str:
        """The objective metric on the sealed problems."""
        return "/".join([*self.metric.split("/")[:2], TEST_SET])


@dataclass(frozen=True)
class Rounds:
    """Looks at finalists in rounds of fresh seeds, as the sweep that trains them recorded them."""

    looks: tuple[int, ...]  # planned, in seeds
    worthwhile: float
    outcome: str  # better, not better, undecided or open
    device_hours: float  # in training steps and evaluations
    standings: pd.DataFrame  # configuration, seeds, gain, low, high, decision: a row per look and finalist


def column_of(parameter: str) -> str:
    """The column of the trials' table that holds a searched parameter."""
    return {"algorithm.ar_alpha": "alpha", "algorithm.lopti_eta": "eta"}.get(parameter, parameter)


@dataclass(frozen=True)
class Sweep:
    """A sweep as two tables.

    ``trials`` has one row per trial, in the order of their start: trial, configuration, seed, state
    (COMPLETE, PRUNED, FAIL, KILLED or RUNNING), reason, score (NaN for a failed trial), best (of the objective
    metric), step (last evaluated), start (UTC), duration_s (NaN while running), test (score on the sealed
    problems, NaN without), arm (of `arms`; empty without), algorithm, alpha, eta, variant, run_id, a column for
    every name in ``searched``, and label: its configuration in words.

    ``histories`` has trial, metric, step, value, for the objective metric, ``CURVES`` and ``AUDIT``; ``latest``
    has trial, metric, value, for the last ``tokens/*`` and ``eval/accuracy/*`` of every trial.
    """

    name: str
    uri: str
    status: str  # of its run in MLflow
    objective: Objective
    trials: pd.DataFrame
    histories: pd.DataFrame
    searched: tuple[str, ...]
    latest: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["trial", "metric", "value"]))
    planned: int | None = None  # trials; None where the sweep did not record it
    gpus_per_trial: float = 0
    cpus_per_trial: float = 1
    solved: Mapping[str, Solved] = field(default_factory=dict)  # trial -> which problems; where recorded
    adaptive: bool = False  # whether scores on these seeds decided what was tried, or how long
    confirmation: "Sweep | None" = None  # the finalists on fresh seeds, under their numbers in this sweep
    rounds: Rounds | None = None  # of a confirmation that runs in rounds
    kinds: Mapping[str, str] = field(default_factory=dict)  # searched parameter -> e.g. loguniform
    changes: str = ""  # of data and reward files between its trials, which were accepted
    run_id: str = ""  # of its run in MLflow
    baseline: str | None = None  # configuration listed first under `baselines`; None where none is listed
    setting: tuple[str, str] = ("unknown", "unknown")  # model and task
    arms: tuple[str, ...] = ()  # values that were tuned alone, on equal budgets; the first is the baseline

    def __post_init__(self) -> None:
        labels = configuration_labels(self.trials, self.searched)
        object.__setattr__(self, "trials", self.trials.assign(label=labels))

    @property
    def varied(self) -> tuple[str, ...]:
        """The searched parameters that have more than one value so far."""
        return tuple(name for name in self.searched if self.trials[column_of(name)].nunique() > 1)

    @property
    def ended(self) -> int:
        """Trials that came to an end."""
        return int(self.trials.state.isin(["COMPLETE", "PRUNED", "FAIL"]).sum())

    @property
    def progress(self) -> str:
        """How far the sweep is, in words; by its trials, because a report is also written while it closes."""
        if self.planned is not None and self.ended >= self.planned:
            return f"finished: all {self.planned} planned trials have ended"
        planned = f" of {self.planned} planned" if self.planned is not None else ""
        if self.status == "RUNNING":
            return f"running: {self.ended}{planned} trials have ended"
        return f"{'stopped' if planned else self.status.lower()}: {self.ended}{planned} trials have ended"

    @property
    def device(self) -> str:
        """The unit of its cost: GPU or CPU."""
        return "GPU" if self.gpus_per_trial else "CPU"

    def device_hours(self) -> "pd.Series[float]":
        """Hours of a trial's devices from its start to its end; NaN while it runs."""
        return self.trials.duration_s / 3600 * (self.gpus_per_trial or self.cpus_per_trial)

    def complete(self) -> pd.DataFrame:
        """The trials that trained to their end and have a score."""
        return self.trials[(self.trials.state == "COMPLETE") & self.trials.score.notna()]

    def configurations(self) -> pd.DataFrame:
        """One row per configuration: mean, low, high, seeds and the parameters.

        Only configurations that are complete on as many seeds as any: where a hard seed failed or has not run
        yet, the mean of the others would pass for a better setting.
        """
        complete = self.complete()
        if complete.empty:
            return pd.DataFrame(columns=[*complete.columns, "mean", "low", "high", "seeds"])
        grouped = complete.groupby("configuration", sort=False)
        table = grouped.first()
        table["mean"], table["low"], table["high"] = (grouped.score.mean(), grouped.score.min(), grouped.score.max())
        table["seeds"] = grouped.score.count()
        most = int(table["seeds"].max())
        return table.loc[table["seeds"] == most].reset_index()


def unit_of(metric: str) -> str:
    """The declared unit of a metric, for an axis; empty where it is a plain number."""
    declared = METRICS.get(metric)
    return declared.unit if declared is not None and declared.unit != "1" else ""
