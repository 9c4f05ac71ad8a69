"""A set of trials, the requested comparison, and its verdict."""

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from dashboards.labels import Names
from dashboards.rounds import Rounds
from dashboards.statistics.arm_table import ArmRow, arm_rows
from dashboards.statistics.arms import Plan, compare_as_asked
from dashboards.statistics.blocks import UNKNOWN, Blocks, Known, learned
from dashboards.statistics.budgets import Budget
from dashboards.statistics.checked_guards import CheckedGuard, GuardState, state_of
from dashboards.statistics.compared import Comparison
from dashboards.statistics.difference import Difference
from dashboards.statistics.layouts import Pairing
from dashboards.statistics.levels import repeats_factor
from dashboards.statistics.seed_noise import oriented
from dashboards.statistics.verdict import Tested, Verdict, conclude
from dashboards.trial import Mode
from dashboards.trial_set import SeedScores, TrialSet
from dashboards.tuned_rules import TunedRules

NUMBER = "number"  # placeholder for the number that configurations are compared with


@dataclass(frozen=True)
class Guard:
    """A metric, its largest tolerated loss (margin), and the runs scored by this metric."""

    metric: str
    margin: float
    results: "Results"

    def check(self, configuration: str, found: Difference | None = None) -> CheckedGuard:
        """Compare a configuration with the baseline on this metric; ``found`` is their difference
        at an interim analysis, if there was one.
        """
        if found is None:
            found = self._difference(configuration)
        return CheckedGuard.of(self.metric, self.margin, self.results.objective.sign, found)

    def _difference(self, configuration: str) -> Difference | None:
        """Return a configuration's difference from the baseline; with arms, its arm's difference,
        whose interval includes tuning variance. None if it is not compared with the baseline.
        """
        if self.results.arms:
            rules = self.results.tuned_rules
            arm = rules.arm_of[configuration]
            return next((result.found for result in rules.compared if result.rule == arm), None)
        comparison = self.results.fresh_comparison or self.results.comparison
        if comparison is None:
            return None
        for difference in comparison.differences:
            if difference.configuration == configuration:
                return difference
        return None


@dataclass(frozen=True)
class Results(TrialSet):
    """Trials, and the settings that a verdict on them needs."""

    # how runs are paired by seed (auto, paired or unpaired), for runs of other programs; None for a
    # sweep, which plans every seed for all configurations
    pairing: Pairing | None = None
    # seed -> task, if every task has its own seeds; differences are then averaged over tasks
    task_of: Mapping[Hashable, str] = field(default_factory=dict)
    by_task: Mapping[str, "Results"] = field(default_factory=dict)  # task -> results of its runs
    place: str = ""  # column along which runs are compared: steps, or an axis; empty if unknown
    at_equal_amounts: bool = False  # whether every run is compared at one amount of an axis
    # the amount of the axis; None without an axis, and for several tasks with separate budgets
    budget: Budget | None = None
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
    # configuration -> value by which the best of an arm is chosen, larger is better; empty if the
    # score chooses it
    chosen_by: Mapping[str, float] = field(default_factory=dict)
    fresh: "Results | None" = None  # finalists on fresh seeds, numbered as in this search
    rounds: Rounds | None = None  # set if these are finalists of a sequential confirmation
    # earlier confirmations of the same finalists; their scores are left out, and p-values and
    # intervals are corrected for them
    earlier_confirmations: int = 0
    # whether the program declares that seeds are blocks: a seed gives every configuration the same
    # problems in the same order and the same initial model
    declared_blocks: bool = False

    @property
    def cost(self) -> list[float]:
        """Device hours of each trial with recorded time, fresh seeds included."""
        fresh = [] if self.fresh is None else self.fresh.cost
        return [trial.hours for trial in self.trials if trial.hours > 0] + fresh

    @cached_property
    def compared_with(self) -> str | None:
        """The configuration that all others are compared with: `baseline`, or with arms the best
        configuration of the first arm. `NUMBER` if they are compared with a number; None if the
        baseline has no comparable score.
        """
        if self.against is not None:
            return NUMBER
        trials = self.comparable
        number = self.baseline
        if self.arms:
            number = self.best_of(trials[trials.arm == self.arms[0]])
        return number if number in set(trials.configuration) else None

    @property
    def fresh_finished(self) -> bool:
        """Whether all planned trials on fresh seeds have ended; False if none are planned."""
        return self.fresh is not None and self.fresh.finished

    @property
    def can_confirm(self) -> bool:
        """Whether the baseline and another configuration are complete on all seeds, so that `sweep
        confirm` has something to compare; with arms, a configuration of the first and of another.
        """
        seeds = self.table.seed.nunique()
        counts = self.comparable.groupby("configuration").seed.nunique()
        complete = set(counts[counts == seeds].index)
        if self.compared_with not in complete:
            return False
        if self.arms:
            return len({self.tuned_rules.arm_of[number] for number in complete}) > 1
        return len(complete) > 1

    @cached_property
    def labels(self) -> dict[str, str]:
        """Configuration -> label, only for display."""
        labels = dict(zip(self.table.configuration, map(str, self.table.label), strict=True))
        if self.against is not None:
            labels[NUMBER] = f"{self.against:g}"
        return labels

    def names(self) -> Names:
        """Return new `Names` of the configurations, for a text in which none has been mentioned."""
        fresh = {} if self.fresh is None else self.fresh.labels
        return Names({**fresh, **self.labels})

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
        """Return whether seeds are blocks, as far as it is known without these scores; ``earlier``
        are scores of a search on other seeds.
        """
        if self.against is not None:
            return UNKNOWN
        if self.pairing == "paired":
            return Blocks(True, "asked")
        if self.declared_blocks:
            return Blocks(True, "declared")
        return UNKNOWN if earlier is None else learned(earlier)

    def _compared(self, scores: SeedScores, earlier: SeedScores | None) -> Comparison | None:
        """Compare configurations on these seeds; ``earlier`` are scores of a search. None if the
        baseline has no comparable score.
        """
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
        """The best finalist compared with the baseline on fresh seeds; None if the baseline has no
        score on fresh seeds, or none were run.
        """
        if self.fresh is None:
            return None
        scores = self.fresh.seed_scores
        return self.fresh._concluded(self.fresh_comparison, scores, self.seed_scores, self._guarded)

    @cached_property
    def answer(self) -> Verdict | None:
        """The verdict of the best evidence: on fresh seeds if they were run, else on the search's
        seeds. If rounds of fresh seeds have a winner, it is the verdict on the winner. None if the
        baseline has no score.
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
        """Return the same trials with ``metric`` as their score, without curves. ``margin`` is set
        if the metric is a guard.
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

    def guards_of_arm(self, arm: str) -> list[CheckedGuard]:
        """Return the state of every guard for an arm on fresh seeds."""
        return self.checked_guards(self.tuned_rules.setting_of(arm))

    def guard_state(self, configuration: str) -> GuardState:
        """Return the joint state of all guards for a configuration; ``holds`` without guards."""
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
        """The configurations for which all guards hold; empty without guards."""
        if not self.guards:
            return set()
        numbers = {trial.configuration for trial in self.trials}
        return {number for number in numbers if self.guard_state(number) == "holds"}

    def verdict_on_fresh(self, finalist: str) -> Verdict | None:
        """Return the verdict of fresh seeds on one finalist, as if it were the only one; None
        without fresh seeds, or if the baseline has no score on them.
        """
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
        """Return the verdict from a comparison on these seeds; None without a comparison."""
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
    def arm_table(self) -> list[ArmRow]:
        """All configurations compared with the baseline, on fresh seeds if they were run. Empty if
        the baseline has no score, if rules were tuned separately, and after interim analyses,
        because their intervals are wider.
        """
        if self.arms:
            return []
        if self.fresh is not None and self.fresh.compared_with is not None:
            if self.fresh.rounds is not None:
                return []
            return self.fresh._arm_rows(self.fresh_comparison)
        return self._arm_rows(self.comparison)

    @cached_property
    def tuned_rules(self) -> TunedRules:
        """The rules that were tuned separately, and their comparison on fresh seeds."""
        repeats = 1 if self.fresh is None else repeats_factor(self.fresh.earlier_confirmations)
        return TunedRules(self, self.arms, self.fresh, self.chosen_by, repeats)

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

    def changed(self, number: str) -> dict[str, tuple[Any, Any]]:
        """Return the parameters in which a configuration differs from the baseline: name -> (value,
        baseline's value). Empty if one of the two did not run.
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
