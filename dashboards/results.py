"""The results of a set of trials from any source, and everything derived from them."""

import json
import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from dashboards.labels import configuration_labels
from dashboards.statistics import peaks, tournament
from dashboards.statistics.arm_table import ArmRow, arm_rows
from dashboards.statistics.arms import Layout, Pairing, compare_arms, compare_with_number
from dashboards.statistics.comparison import compare
from dashboards.statistics.levels import repeats_factor
from dashboards.statistics.problems import Answers
from dashboards.statistics.seed_noise import Scores, finite_scores, oriented
from dashboards.statistics.sequential import InterimResult
from dashboards.statistics.verdict import (
    Verdict,
    verdict,
    verdict_on_fresh_seeds,
    verdict_on_number,
)
from dashboards.trial import FIELDS, Objective, TrialRecord, best_first
from loptune.declared_metrics import METRICS
from loptune.errors import printable
from loptune.parameter_names import short_names
from loptune.run_names import command_line
from loptune.score import mean

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
UNORDERED_KINDS = (
    "choice",
    "value",
    "by",
)  # parameter kinds whose values may be other than numbers

SeedScores = dict[str, dict[Hashable, float]]


@dataclass(frozen=True)
class Rounds:
    """A sequential confirmation: interim analyses of finalists on fresh seeds."""

    planned: tuple[int, ...]  # seeds per configuration at each analysis
    worthwhile: float
    outcome: str  # better, not better, undecided or open
    # in order of the analyses; finalists numbered as in the search
    results: tuple[InterimResult, ...]

    @property
    def last(self) -> list[InterimResult]:
        """The latest result of each finalist."""
        newest: dict[str, InterimResult] = {}
        for result in self.results:
            newest.pop(result.finalist, None)
            newest[result.finalist] = result
        return list(newest.values())

    @property
    def winner(self) -> InterimResult | None:
        """Among finalists shown to be better, the one with the largest gain (larger is better in
        both modes).
        """
        better = [result for result in self.last if result.decision == "better"]
        return max(better, key=lambda result: result.gain, default=None)


@dataclass(frozen=True)
class Results:
    """Trials, and the settings that a verdict on them needs. ``name`` is empty for runs of other
    programs.
    """

    name: str
    objective: Objective
    trials: tuple[TrialRecord, ...]
    searched: tuple[str, ...]
    kinds: Mapping[str, str] = field(default_factory=dict)  # searched parameter -> e.g. loguniform
    source: str = ""  # path or URI that they were read from
    model: str = "unknown"
    task: str = "unknown"
    planned: int | None = None  # number of planned trials; None if unknown
    running: bool = False
    device: Literal["GPU", "CPU"] = "CPU"
    devices: float = 1  # per trial
    adaptive: bool = False  # whether scores on these seeds chose configurations or stopped trials
    listed: bool = False  # whether a person listed all configurations, so that none was chosen
    # whether seeds are blocks, for runs of other programs; None if every seed was planned for all
    pairing: Pairing | None = None
    against: float | None = None  # number that the configurations are compared with
    not_worse_by: float | None = None  # margin of a test that an arm is not worse, if asked for
    # number of the configuration that all others are compared with; None if there is none, or if
    # rules are tuned separately
    baseline: str | None = None
    # values tuned separately with equal budgets; the first is the baseline
    arms: tuple[str, ...] = ()
    fresh: "Results | None" = None  # finalists on fresh seeds, numbered as in this search
    # configuration -> its label in the search, of finalists
    search_labels: Mapping[str, str] = field(default_factory=dict)
    rounds: Rounds | None = None  # set if these are finalists of a sequential confirmation
    # of the same finalists; their scores are left out, and p-values and intervals are corrected for
    # them
    earlier_confirmations: int = 0
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
        parameters: dict[str, None] = {}  # of any trial, in order
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
        """Return a parameter's value as a table can compare it: lists, mappings and a choice that
        is null as JSON text.

        An empty cell means that the trial's rule does not have the parameter.
        """
        is_null_choice = value is None and self.kinds.get(name) in UNORDERED_KINDS
        if is_null_choice or isinstance(value, list | tuple | dict):
            return json.dumps(value, ensure_ascii=False)
        return printable(value) if isinstance(value, str) else value

    def history(self, metric: str) -> pd.DataFrame:
        """Return a metric as rows of trial, step, value; trials that did not log it are absent."""
        points: list[tuple[str, int, float]] = []
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

    @property
    def cost(self) -> list[float]:
        """Device hours of each trial with recorded time, fresh seeds included."""
        fresh = [] if self.fresh is None else self.fresh.cost
        return [trial.hours for trial in self.trials if trial.hours > 0] + fresh

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
        """Return the configuration with the best mean score among the ones with the most seeds."""
        scores = trials.groupby("configuration", sort=False).score
        table = scores.agg(mean=mean, count="count")
        means = table[table["count"] == table["count"].max()]["mean"]
        return next(iter(best_first(dict(means), self.objective)), None)

    @cached_property
    def baseline_label(self) -> str | None:
        """Label of `baseline`; with arms, of the best configuration of the first arm. None if it
        has no comparable score.
        """
        if self.against is not None:
            return f"{self.against:g}"
        trials = self.comparable
        number = self.baseline
        if self.arms:
            number = self.best_of(trials[trials.arm == self.arms[0]])
        chosen = trials[trials.configuration == number]
        return None if chosen.empty else str(chosen.label.iloc[0])

    @cached_property
    def numbers(self) -> dict[str, str]:
        """Label -> configuration."""
        return dict(zip(self.table.label, self.table.configuration, strict=True))

    @cached_property
    def labels(self) -> dict[str, str]:
        """Configuration -> label."""
        return {number: label for label, number in self.numbers.items()}

    @cached_property
    def seed_scores(self) -> SeedScores:
        """Label -> seed -> score of the comparable configurations; NaN for a failed seed. If the
        search was adaptive, configurations that failed on every seed are left out.
        """
        scores: SeedScores = {}
        table = self.comparable
        for label, seed, score in zip(table.label, table.seed, table.score, strict=True):
            scores.setdefault(str(label), {})[seed] = score
        for trial in self.trials:
            label = self.labels[trial.configuration]
            if trial.state == "FAIL" and (label in scores or not self.adaptive):
                scores.setdefault(label, {})[trial.seed] = math.nan
        return scores

    @cached_property
    def answers(self) -> Answers:
        """Label -> seed -> accuracy per problem, for comparable trials that recorded it."""
        comparable = set(self.comparable.trial)
        answers: dict[str, dict[Hashable, Any]] = {}
        for trial in self.trials:
            if trial.solved is not None and trial.name in comparable:
                accuracy = np.asarray(trial.solved)
                answers.setdefault(self.labels[trial.configuration], {})[trial.seed] = accuracy
        return answers

    @cached_property
    def verdict(self) -> Verdict | None:
        """The best configuration compared with the baseline on these seeds; None if the baseline
        has no score.
        """
        if self.baseline_label is None:
            return None
        if self.against is not None:
            return verdict_on_number(
                self.seed_scores,
                self.against,
                self.baseline_label,
                self.objective.mode,
                adaptive=self.adaptive,
            )
        return verdict(
            self.seed_scores,
            self.baseline_label,
            self.objective.mode,
            adaptive=self.adaptive,
            answers=self.answers,
            pairing=self.pairing,
        )

    @property
    def nothing_chosen(self) -> bool:
        """Whether no score selected the compared configurations, so that these seeds can give
        evidence.
        """
        return not self.adaptive and (self.listed or not self.name)

    @cached_property
    def arm_table(self) -> list[ArmRow]:
        """All configurations compared with the baseline, on fresh seeds if they were run; empty
        without a baseline's score, for rules tuned separately, and after interim analyses, whose
        intervals are wider.
        """
        if self.arms:
            return []
        if self.fresh is not None and self.fresh.baseline_label is not None:
            if self.fresh.rounds is not None:
                return []
            earlier = self._scores_of_finalists(self.fresh.seed_scores)
            return self.fresh._arm_table(earlier)
        return self._arm_table(None)

    def _arm_table(self, earlier: Scores | None) -> list[ArmRow]:
        baseline = self.baseline_label
        if baseline is None:
            return []
        sign = self.objective.sign
        gains = oriented(self.seed_scores, sign)
        layouts: Mapping[str, Layout] = {}
        if self.against is not None:
            comparison, layouts = compare_with_number(gains, sign * self.against)
        elif self.pairing is None:
            earlier_gains = None if earlier is None else oriented(earlier, sign)
            comparison = compare(
                gains,
                baseline,
                earlier=earlier_gains,
                answers=self.answers,
                repeats=repeats_factor(self.earlier_confirmations),
            )
        else:
            comparison, layouts = compare_arms(gains, baseline, self.pairing, answers=self.answers)
        return arm_rows(self.seed_scores, baseline, sign, comparison, layouts, self.not_worse_by)

    @cached_property
    def fresh_verdict(self) -> Verdict | None:
        """The best finalist compared with the baseline on fresh seeds."""
        return self.verdict_on_fresh()

    def verdict_on_fresh(self, only: str | None = None) -> Verdict | None:
        """Return the verdict on fresh seeds, for one finalist if ``only`` names it.

        The search's seeds only add to the noise estimate.
        """
        fresh = self.fresh
        if fresh is None or fresh.baseline_label is None:
            return None
        base = fresh.baseline_label
        scores = dict(fresh.seed_scores)
        if only is not None:
            scores = {label: scores[label] for label in scores if label in (base, only)}
        if fresh.pairing is not None:
            return verdict(
                scores, base, fresh.objective.mode, answers=fresh.answers, pairing=fresh.pairing
            )
        earlier = self._scores_of_finalists(scores)
        return verdict_on_fresh_seeds(
            scores,
            base,
            fresh.objective.mode,
            earlier=earlier,
            answers=fresh.answers,
            repeats=repeats_factor(fresh.earlier_confirmations),
        )

    def _scores_of_finalists(self, finalists: Collection[str]) -> SeedScores:
        """Return the search's scores of the configurations with these labels on fresh seeds."""
        assert self.fresh is not None
        scores = {}
        for label, row in self.seed_scores.items():
            label_on_fresh = self.fresh.labels.get(self.numbers[label])
            if label_on_fresh is not None and label_on_fresh in finalists:
                scores[label_on_fresh] = row
        return scores

    @property
    def _varied_in_arms(self) -> pd.DataFrame:
        """One row per arm, one column per tuned parameter: whether it varies within the arm."""
        tuned = [name for name in self.searched if self.kinds.get(name) != "by"]
        return self.table.groupby("arm")[tuned].nunique() > 1

    @cached_property
    def arm_of(self) -> dict[str, str]:
        """Configuration -> arm."""
        return {trial.configuration: trial.arm for trial in self.trials}

    @cached_property
    def arm_means(self) -> dict[str, pd.Series]:
        """Arm -> mean scores of its configurations that can be chosen."""
        means = self.complete_means
        return {arm: means[means.index.map(self.arm_of) == arm] for arm in self.arms}

    @cached_property
    def arm_results(self) -> list[tournament.RuleResult]:
        """Each other arm compared with the first on fresh seeds, best first; empty before the first
        arm has run on them.
        """
        fresh = self.fresh_arm_scores
        if not finite_scores(fresh).get(self.arms[0]):
            return []
        parameters = self._varied_in_arms.sum(axis="columns")
        means = self.arm_means
        tunings = {arm: tournament.Tuning(list(means[arm]), int(parameters[arm])) for arm in fresh}
        repeats = repeats_factor(self.fresh.earlier_confirmations) if self.fresh else 1
        return tournament.compare_rules(
            fresh, self.arms[0], tunings, self.objective.mode, repeats=repeats
        )

    @cached_property
    def fresh_arm_scores(self) -> Scores:
        """Arm -> fresh seed -> score; NaN for a failed seed."""
        scores: SeedScores = {}
        trials = () if self.fresh is None else self.fresh.trials
        for trial in trials:
            if trial.state in ("COMPLETE", "FAIL"):
                scores.setdefault(self.arm_of[trial.configuration], {})[trial.seed] = trial.score
        return scores

    @cached_property
    def grid(self) -> peaks.Grid | None:
        """The grid of the one tuned parameter, if all arms ran the same values on the same seeds;
        else None.

        A failed trial counts with the worst score of all.
        """
        within = self._varied_in_arms
        tuned = list(within.columns[within.any()])
        if len(self.arms) < 2 or len(tuned) != 1:
            return None
        ended = self.table[self.table.state.isin(["COMPLETE", "FAIL"])]
        sign = self.objective.sign
        worst = sign * (sign * ended.score).min()
        values = pd.to_numeric(ended[tuned[0]], errors="coerce")
        cells = ended.assign(score=ended.score.fillna(worst), value=values)
        cells = cells.pivot_table(index=["arm", "value"], columns="seed", values="score")
        levels = sorted(values.dropna().unique())
        every = cells.reindex(pd.MultiIndex.from_product([self.arms, levels]))
        if len(levels) < peaks.FITTED_VALUES or len(cells.columns) < peaks.MIN_PEAK_SEEDS:
            return None
        if levels[0] <= 0 or every.isna().any(axis=None):
            return None
        scores = every.to_numpy().reshape(len(self.arms), len(levels), -1)
        name = short_names(tuned)[tuned[0]]
        return peaks.Grid(name, self.arms, np.array(levels), scores, self.objective.sign)

    def changed(self, label: str) -> dict[str, tuple[Any, Any]]:
        """Return the parameters that differ from the baseline: name -> (value, baseline's
        value).
        """
        settings = self.table.drop_duplicates("label").set_index("label")
        if label not in settings.index or self.baseline_label not in settings.index:
            return {}
        ours = settings.loc[label]
        base = settings.loc[self.baseline_label]
        changed = {}
        for name in self.varied:
            value, base_value = ours[name], base[name]
            if value != base_value and (pd.notna(value) or pd.notna(base_value)):
                changed[name] = (value, base_value)
        return changed


def unit_of(metric: str) -> str:
    """Return a metric's declared unit for an axis title; empty if it has none."""
    declared = METRICS.get(metric)
    return declared.unit if declared is not None and declared.unit != "1" else ""
