"""A set of trials from any source, and what is derived from them before any comparison."""

import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from dashboards.labels import configuration_labels
from dashboards.statistics.problems import Answers
from dashboards.trial import FIELDS, Objective, TrialRecord, best_first
from loptune.errors import printable
from loptune.run_names import command_line
from loptune.score import mean

# parameter kinds whose values need not be numbers
UNORDERED_KINDS = ("choice", "value", "by")

SeedScores = dict[str, dict[Hashable, float]]


@dataclass(frozen=True)
class TrialSet:
    """Trials as they were recorded, and their origin. ``name`` is empty for runs of other
    programs.
    """

    name: str
    objective: Objective
    trials: tuple[TrialRecord, ...]
    searched: tuple[str, ...]
    # searched parameter -> kind of its range, such as loguniform
    kinds: Mapping[str, str] = field(default_factory=dict)
    source: str = ""  # path or URI that the trials were read from
    model: str = "unknown"
    task: str = "unknown"
    planned: int | None = None  # number of planned trials; None if unknown
    running: bool = False
    device: Literal["GPU", "CPU"] = "CPU"
    devices: float = 1  # devices per trial
    adaptive: bool = False  # whether scores on these seeds chose configurations or stopped trials
    listed: bool = False  # whether a person listed all configurations, so that no score chose any
    # configuration -> its label in the search, for finalists
    search_labels: Mapping[str, str] = field(default_factory=dict)
    # warnings: trials that may not be comparable, seeds that may have no effect
    warnings: tuple[str, ...] = ()
    runs_dir: str = "runs"  # parent of the sweep's folder

    def command(self, verb: str, *options: str) -> str:
        """Return a command line for the sweep that works where it is printed."""
        return command_line("sweep", verb, self.name, *options, runs_dir=Path(self.runs_dir))

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per trial: its fields, minutes, one column per parameter, and the configuration
        label.
        """
        rows = []
        parameters: dict[str, None] = {}  # parameters of any trial, in order
        for trial in self.trials:
            row = {**vars(trial), "trial": trial.name}
            row["minutes"] = 60 * trial.hours / self.devices
            for name, value in trial.parameters.items():
                row[name] = self._cell(name, value)
                parameters[name] = None
            rows.append(row)
        parameters |= dict.fromkeys(self.searched)
        table = pd.DataFrame(rows, columns=[*FIELDS[:-1], *parameters])
        for name in self.searched:
            # NaN if the trial's rule does not have the parameter
            if self.kinds.get(name, "choice") not in UNORDERED_KINDS:
                table[name] = pd.to_numeric(table[name], errors="coerce")
        labels = configuration_labels(table, self.searched)
        table["label"] = table.configuration.map(self.search_labels).fillna(labels)
        return table

    def _cell(self, name: str, value: Any) -> Any:
        """Return a parameter's value in a form that tables can compare: lists, mappings and null
        choices become JSON text.

        An empty cell means that the trial's rule does not have the parameter.
        """
        is_null_choice = value is None and self.kinds.get(name) in UNORDERED_KINDS
        if is_null_choice or isinstance(value, list | tuple | dict):
            return json.dumps(value, ensure_ascii=False)
        return printable(value) if isinstance(value, str) else value

    def history(self, metric: str) -> pd.DataFrame:
        """Return a metric as rows of trial, step, value; trials that did not log it are absent."""
        points: list[tuple[str, float, float]] = []
        for trial in self.trials:
            if metric in trial.curves:
                curve = trial.curves[metric]
                places = zip(curve.steps, curve.values, strict=True)
                points += [(trial.name, step, value) for step, value in places]
        return pd.DataFrame(points, columns=["trial", "step", "value"])

    @property
    def varied(self) -> tuple[str, ...]:
        """The searched parameters that have more than one value so far."""
        return tuple(name for name in self.searched if self.table[name].nunique() > 1)

    @property
    def ended(self) -> int:
        """Number of trials that completed, were pruned or failed."""
        return sum(trial.ended for trial in self.trials)

    @property
    def finished(self) -> bool:
        """Whether all planned trials have ended; False if the plan is unknown."""
        return self.planned is not None and self.ended >= self.planned

    @property
    def progress(self) -> str:
        """Progress of the trials as text."""
        if self.planned is None:
            return f"{self.ended} of {len(self.trials)} trials have ended"
        if self.finished:
            return f"finished: all {self.planned} planned trials have ended"
        state = "running" if self.running else "stopped"
        return f"{state}: {self.ended} of {self.planned} planned trials have ended"

    @cached_property
    def comparable(self) -> pd.DataFrame:
        """The trials that a comparison may use.

        They completed with a score, and no seed of their configuration was stopped early: the seeds
        that survive are a biased sample.
        """
        pruned = {trial.configuration for trial in self.trials if trial.state == "PRUNED"}
        table = self.table
        return table[
            (table.state == "COMPLETE") & table.score.notna() & ~table.configuration.isin(pruned)
        ]

    @cached_property
    def complete_means(self) -> pd.Series:
        """Configuration -> mean score, for comparable configurations without a failed seed. Only
        these can be chosen.
        """
        failed = [trial.configuration for trial in self.trials if trial.state == "FAIL"]
        scores = self.comparable.groupby("configuration").score
        return scores.agg(mean).drop(failed, errors="ignore")

    def best_of(self, trials: pd.DataFrame) -> str | None:
        """Return the configuration with the best mean score among the ones with the most seeds;
        None if ``trials`` is empty.
        """
        scores = trials.groupby("configuration", sort=False).score
        table = scores.agg(mean=mean, count="count")
        means = table[table["count"] == table["count"].max()]["mean"]
        return next(iter(best_first(dict(means), self.objective)), None)

    @cached_property
    def seed_scores(self) -> SeedScores:
        """Configuration -> seed -> score of the comparable configurations; NaN for a failed seed.

        If the search was adaptive, configurations that failed on every seed are left out.
        """
        scores: SeedScores = {}
        table = self.comparable
        for number, seed, score in zip(table.configuration, table.seed, table.score, strict=True):
            scores.setdefault(str(number), {})[seed] = score
        for trial in self.trials:
            number = trial.configuration
            if trial.state == "FAIL" and (number in scores or not self.adaptive):
                scores.setdefault(number, {})[trial.seed] = math.nan
        return scores

    @cached_property
    def answers(self) -> Answers:
        """Configuration -> seed -> accuracy per problem, for comparable trials that recorded it."""
        comparable = set(self.comparable.trial)
        answers: dict[str, dict[Hashable, Any]] = {}
        for trial in self.trials:
            if trial.solved is not None and trial.name in comparable:
                accuracy = np.asarray(trial.solved)
                answers.setdefault(trial.configuration, {})[trial.seed] = accuracy
        return answers

    @property
    def nothing_chosen(self) -> bool:
        """Whether no score selected the compared configurations, so that these seeds can give
        evidence.
        """
        return not self.adaptive and (self.listed or not self.name)
