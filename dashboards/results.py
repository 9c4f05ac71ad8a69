"""The results of a set of trials from any source, and everything derived from them."""

import json
import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from dashboards.labels import Names, configuration_labels
from dashboards.statistics import peaks, tournament
from dashboards.statistics.arm_table import ArmRow, arm_rows
from dashboards.statistics.arms import Plan, compare_as_asked
from dashboards.statistics.blocks import UNKNOWN, Blocks, Known, learned
from dashboards.statistics.budgets import Budget
from dashboards.statistics.checked_guards import CheckedGuard, GuardState, state_of
from dashboards.statistics.compared import Comparison
from dashboards.statistics.difference import Difference
from dashboards.statistics.layouts import Pairing
from dashboards.statistics.levels import repeats_factor
from dashboards.statistics.problems import Answers
from dashboards.statistics.seed_noise import Scores, finite_scores, oriented
from dashboards.statistics.verdict import Tested, Verdict, conclude
from dashboards.trial import FIELDS, Mode, Objective, TrialRecord, best_first
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
)  # parameter kinds whose values may be other things than numbers

SeedScores = dict[str, dict[Hashable, float]]
UNEQUAL = 1.1  # ratio of two costs above which they are called unequal
NUMBER = "number"  # placeholder for the number that configurations are compared with


@dataclass(frozen=True)
class Rounds:
    """A sequential confirmation: interim analyses of finalists on fresh seeds."""

    planned: tuple[int, ...]  # seeds per configuration at each analysis
    worthwhile: float
    outcome: str  # better, not better, undecided or open
    # in order of the analyses; finalists numbered as in the search
    results: tuple[Difference, ...]
    # finalist -> metric of a guard -> its difference at the latest analysis
    guards: Mapping[str, Mapping[str, Difference]] = field(default_factory=dict)

    @property
    def last(self) -> list[Difference]:
        """The latest result of each finalist."""
        newest: dict[str, Difference] = {}
        for result in self.results:
            newest.pop(result.configuration, None)
            newest[result.configuration] = result
        return list(newest.values())

    @property
    def winner(self) -> Difference | None:
        """Among finalists shown to be better, the one with the largest gain (larger is better in
        both modes).
        """
        better = [result for result in self.last if result.outcome == "better"]
        return max(better, key=lambda result: result.gain, default=None)


@dataclass(frozen=True)
class Guard:
    """A metric, the margin of a tolerated loss, and the runs with this metric as their score."""

    metric: str
    margin: float
    results: "Results"

    def check(self, configuration: str, found: Difference | None = None) -> "CheckedGuard":
        """Compare a configuration with the baseline on this metric; ``found`` is their difference
        at an interim analysis, if there was one.
        """
        if found is None:
            found = self._difference(configuration)
        return CheckedGuard.of(self.metric, self.margin, self.results.objective.sign, found)

    def _difference(self, configuration: str) -> Difference | None:
        """Return a configuration's difference to the baseline; with arms, its arm's difference,
        whose interval includes tuning variance.
        """
        if self.results.arms:
            arm = self.results.arm_of[configuration]
            rules = [result.found for result in self.results.arm_results if result.rule == arm]
            return next(iter(rules), None)
        comparison = self.results.fresh_comparison or self.results.comparison
        if comparison is None:
            return None
        for difference in comparison.differences:
            if difference.configuration == configuration:
                return difference
        return None


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
    source: str = ""  # path or URI of their source
    model: str = "unknown"
    task: str = "unknown"
    planned: int | None = None  # number of planned trials; None if unknown
    running: bool = False
    device: Literal["GPU", "CPU"] = "CPU"
    devices: float = 1  # devices per trial
    adaptive: bool = False  # whether scores on these seeds chose configurations or stopped trials
    listed: bool = False  # whether a person listed all configurations, so that no score chose any
    # whether seeds are blocks, for runs of other programs; None if every seed was planned for all
    pairing: Pairing | None = None
    # seed -> task, if every task has its own seeds; differences are then averaged over tasks
    task_of: Mapping[Hashable, str] = field(default_factory=dict)
    by_task: Mapping[str, "Results"] = field(default_factory=dict)  # task -> only its runs
    place: str = ""  # column along which runs are compared: steps, or an axis; empty if unknown
    at_equal_amounts: bool = False  # whether every run is compared at one amount of an axis
    budget: Budget | None = None  # the amount; None with several tasks, which have separate budgets
    # benchmark of a composite -> its results
    by_score: Mapping[str, "Results"] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()  # metrics on which a better configuration must not be worse
    against: float | None = None  # number that the configurations are compared with
    not_worse_by: float | None = None  # margin of the non-inferiority test, if requested
    # number of the configuration that all others are compared with; None if there is none, or if
    # rules are tuned separately
    baseline: str | None = None
    # values tuned separately with equal budgets; the first is the baseline
    arms: tuple[str, ...] = ()
    # configuration -> value by which the best of an arm is chosen, larger is better; empty: the
    # score
    chosen_by: Mapping[str, float] = field(default_factory=dict)
    fresh: "Results | None" = None  # finalists on fresh seeds, numbered as in this search
    # configuration -> its label in the search, for finalists
    search_labels: Mapping[str, str] = field(default_factory=dict)
    rounds: Rounds | None = None  # set if these are finalists of a sequential confirmation
    # earlier confirmations of the same finalists; their scores are left out, and p-values and
    # intervals are corrected for them
    earlier_confirmations: int = 0
    # warnings: trials that may not be comparable, seeds that may have no effect
    warnings: tuple[str, ...] = ()
    # whether the program declares that seeds are blocks: the same problems in the same order from
    # the same initial model
    declared_blocks: bool = False
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
    def compared_with(self) -> str | None:
        """The number of `baseline`; with arms, of the best configuration of the first arm; `NUMBER`
        if a number takes its place. None if it has no comparable score.
        """
        if self.against is not None:
            return NUMBER
        trials = self.comparable
        number = self.baseline
        if self.arms:
            number = self.best_of(trials[trials.arm == self.arms[0]])
        return number if number in set(trials.configuration) else None

    @cached_property
    def labels(self) -> dict[str, str]:
        """Configuration -> label, for readers only."""
        labels = dict(zip(self.table.configuration, map(str, self.table.label), strict=True))
        if self.against is not None:
            labels[NUMBER] = f"{self.against:g}"
        return labels

    def names(self) -> Names:
        """Return the names of the configurations for a new text."""
        fresh = {} if self.fresh is None else self.fresh.labels
        return Names({**fresh, **self.labels})

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

    @cached_property
    def comparison(self) -> Comparison | None:
        """All configurations compared with the baseline on these seeds: the one test behind
        verdict, table and figures. None if the baseline has no score.
        """
        return self._compared(self.seed_scores, None)

    @cached_property
    def fresh_comparison(self) -> Comparison | None:
        """All finalists compared with the baseline on fresh seeds; the search's seeds only add to
        the noise estimate. None if the baseline has no score on fresh seeds, or none were run.
        """
        if self.fresh is None:
            return None
        return self.fresh._compared(self.fresh.seed_scores, self.seed_scores)

    def blocks(self, earlier: SeedScores | None = None) -> Blocks:
        """Return whether seeds are blocks, as known before these scores; ``earlier`` are scores of
        a search on other seeds.
        """
        if self.against is not None:
            return UNKNOWN
        if self.pairing == "paired":
            return Blocks(True, "asked")
        if self.declared_blocks:
            return Blocks(True, "declared")
        return UNKNOWN if earlier is None else learned(earlier)

    def _compared(self, scores: SeedScores, earlier: SeedScores | None) -> Comparison | None:
        """Compare configurations on these seeds; ``earlier`` are scores of a search."""
        if self.compared_with is None:
            return None
        sign = self.objective.sign
        blocks = self.blocks(earlier).known
        gains = None
        if earlier is not None:
            rows = {number: row for number, row in earlier.items() if number in scores}
            gains = oriented(rows, sign)
        return compare_as_asked(
            oriented(scores, sign),
            self.compared_with,
            Plan(
                pairing=self.pairing,
                against=None if self.against is None else sign * self.against,
                tasks=self.task_of,
            ),
            known=Known(gains, blocks),
            answers=self.answers,
            repeats=repeats_factor(self.earlier_confirmations),
        )

    @cached_property
    def verdict(self) -> Verdict | None:
        """The best configuration compared with the baseline on these seeds; None if the baseline
        has no score.
        """
        return self._concluded(self.comparison, self.seed_scores, None, self._guarded)

    @cached_property
    def fresh_verdict(self) -> Verdict | None:
        """The best finalist compared with the baseline on fresh seeds."""
        if self.fresh is None:
            return None
        scores = self.fresh.seed_scores
        return self.fresh._concluded(self.fresh_comparison, scores, self.seed_scores, self._guarded)

    @cached_property
    def answer(self) -> Verdict | None:
        """The verdict of the best evidence: on fresh seeds if they were run (with rounds, the
        verdict on the winner), else on the search's seeds.
        """
        rounds = None if self.fresh is None else self.fresh.rounds
        if rounds is not None and rounds.winner is not None:
            return self.verdict_on_fresh(rounds.winner.configuration)
        return self.fresh_verdict or self.verdict

    @property
    def not_guarded(self) -> Tested | None:
        """The `answer`, if it claims a gain for which a guard does not hold; else None."""
        answer = self.answer
        if not self.guards or not isinstance(answer, Tested):
            return None
        rounds = None if self.fresh is None else self.fresh.rounds
        if rounds is not None and rounds.winner is None:
            return None
        if rounds is None and answer.claim == "none":
            return None
        return None if self.guard_state(answer.best) == "holds" else answer

    def scored_by(self, metric: str, mode: Mode, margin: float | None = None) -> "Results":
        """Return the same trials with another of their scores, without curves; for a guard, with
        its margin.
        """
        trials = []
        for trial in self.trials:
            score = math.nan if trial.state == "FAIL" else trial.scores.get(metric, math.nan)
            trials.append(replace(trial, score=score, solved=None, curves={}, latest={}))
        fresh = None if self.fresh is None else self.fresh.scored_by(metric, mode, margin)
        objective = replace(self.objective, metric=metric, mode=mode, benchmarks=())
        if margin is not None:
            objective = replace(objective, worthwhile=0.0)
        return replace(
            self,
            chosen_by=self.choosing_scores,
            objective=objective,
            trials=tuple(trials),
            fresh=fresh,
            rounds=None,
            not_worse_by=margin,
            by_score={},
            guards=(),
            warnings=(),
        )

    def checked_guards(self, configuration: str) -> list[CheckedGuard]:
        """Return the state of every guard for a configuration."""
        rounds = None if self.fresh is None else self.fresh.rounds
        decided: Mapping[str, Difference] = {}
        if rounds is not None:
            decided = rounds.guards.get(configuration, {})
        return [guard.check(configuration, decided.get(guard.metric)) for guard in self.guards]

    def guard_state(self, configuration: str) -> GuardState:
        """Return whether all guards hold for a configuration; without guards they do."""
        return state_of(self.checked_guards(configuration))

    @property
    def choosing_scores(self) -> dict[str, float]:
        """Configuration -> mean score, larger is better, by which the best of an arm was chosen;
        empty without arms.
        """
        if not self.arms:
            return {}
        means = self.complete_means
        return {number: self.objective.sign * means[number] for number in means.index}

    @property
    def _guarded(self) -> set[str]:
        """The configurations for which all guards hold."""
        if not self.guards:
            return set()
        numbers = {trial.configuration for trial in self.trials}
        return {number for number in numbers if self.guard_state(number) == "holds"}

    def verdict_on_fresh(self, finalist: str) -> Verdict | None:
        """Return the verdict of fresh seeds on one finalist, as if it were the only one."""
        fresh = self.fresh
        if fresh is None:
            return None
        scores = {}
        for number, row in fresh.seed_scores.items():
            if number in (fresh.compared_with, finalist):
                scores[number] = row
        return fresh._concluded(fresh._compared(scores, self.seed_scores), scores, self.seed_scores)

    def _concluded(
        self,
        comparison: Comparison | None,
        scores: SeedScores,
        earlier: SeedScores | None,
        preferred: Collection[str] = (),
    ) -> Verdict | None:
        """Return the verdict that a comparison on these seeds gives."""
        if comparison is None or self.compared_with is None:
            return None
        # runs of other programs are compared without the seeds used for their selection
        known = earlier if self.pairing is None and self.against is None else None
        return conclude(
            comparison,
            scores,
            self.compared_with,
            self.objective.sign,
            earlier=known,
            adaptive=self.adaptive and earlier is None,
            preferred=preferred,
        )

    @cached_property
    def cost_ratios(self) -> dict[str, dict[str, float]]:
        """Configuration -> column -> mean amount that its runs used, divided by the baseline's:
        only where they differ by more than `UNEQUAL`.
        """
        used = self._mean_costs()
        of_baseline = used.pop(self.compared_with or "", {})
        ratios: dict[str, dict[str, float]] = {}
        for configuration, amounts in used.items():
            for column, amount in amounts.items():
                base = of_baseline.get(column, 0.0)
                if base <= 0:
                    continue
                ratio = amount / base
                if ratio > UNEQUAL or ratio < 1 / UNEQUAL:
                    ratios.setdefault(configuration, {})[column] = ratio
        return ratios

    def _mean_costs(self) -> dict[str, dict[str, float]]:
        """Return configuration -> column -> mean amount that its comparable runs used."""
        comparable = set(self.comparable.trial)
        amounts: dict[str, dict[str, list[float]]] = {}
        for trial in self.trials:
            if trial.name in comparable:
                of_configuration = amounts.setdefault(trial.configuration, {})
                for column, amount in trial.costs.items():
                    of_configuration.setdefault(column, []).append(amount)
        means = {}
        for configuration, columns in amounts.items():
            means[configuration] = {column: mean(used) for column, used in columns.items()}
        return means

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
        if self.fresh is not None and self.fresh.compared_with is not None:
            if self.fresh.rounds is not None:
                return []
            return self.fresh._arm_rows(self.fresh_comparison)
        return self._arm_rows(self.comparison)

    def _arm_rows(self, comparison: Comparison | None) -> list[ArmRow]:
        if comparison is None or self.compared_with is None:
            return []
        return arm_rows(
            self.seed_scores,
            self.compared_with,
            self.objective.sign,
            comparison,
            self.labels,
            self.not_worse_by,
            self.task_of,
        )

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
        tunings = {}
        for arm in fresh:
            tuned = means[arm]
            chosen_by = None
            if self.chosen_by:  # a run may have a guard's value and no score
                tuned = tuned[tuned.index.isin(list(self.chosen_by))]
                chosen_by = [self.chosen_by[number] for number in tuned.index]
            tunings[arm] = tournament.Tuning(list(tuned), int(parameters[arm]), chosen_by=chosen_by)
        repeats = repeats_factor(self.fresh.earlier_confirmations) if self.fresh else 1
        return tournament.compare_rules(
            fresh, self.arms[0], tunings, self.objective.mode, repeats=repeats
        )

    def arm_guards(self, arm: str) -> list[CheckedGuard]:
        """Return the state of every guard for an arm on fresh seeds."""
        return self.checked_guards(self.setting_of(arm))

    def setting_of(self, arm: str) -> str:
        """Return the configuration of an arm that ran on fresh seeds, else its first one."""
        numbers = [number for number, of in self.arm_of.items() if of == arm]
        confirmed = () if self.fresh is None else self.fresh.seed_scores
        return next((number for number in numbers if number in confirmed), numbers[0])

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

        A failed trial gets the worst score of all.
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

    def changed(self, number: str) -> dict[str, tuple[Any, Any]]:
        """Return the parameters in which a configuration differs from the baseline: name -> (value,
        baseline's value).
        """
        settings = self.table.drop_duplicates("configuration").set_index("configuration")
        if number not in settings.index or self.compared_with not in settings.index:
            return {}
        ours = settings.loc[number]
        base = settings.loc[self.compared_with]
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
