"""Rules that were tuned separately with equal budgets, each judged at its own best."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from dashboards.statistics import peaks, tournament
from dashboards.statistics.seed_noise import Scores, finite_scores
from dashboards.trial_set import SeedScores, TrialSet
from loptune.parameter_names import short_names


@dataclass(frozen=True)
class TunedRules:
    """The arms of a search with rules tuned separately, and how they compare on fresh seeds."""

    search: TrialSet
    arms: tuple[str, ...]
    fresh: TrialSet | None  # finalists, numbered as in the search; None before the confirmation
    # configuration -> value by which the best of an arm is chosen, larger is better; empty if the
    # score chooses it
    chosen_by: Mapping[str, float]
    repeats: int  # `repeats_factor` of the earlier confirmations

    @property
    def _varied(self) -> pd.DataFrame:
        """One row per arm, one column per tuned parameter: whether it varies within the arm."""
        tuned = [name for name in self.search.searched if self.search.kinds.get(name) != "by"]
        return self.search.table.groupby("arm")[tuned].nunique() > 1

    @cached_property
    def arm_of(self) -> dict[str, str]:
        """Configuration -> arm."""
        return {trial.configuration: trial.arm for trial in self.search.trials}

    @cached_property
    def means(self) -> dict[str, pd.Series]:
        """Arm -> mean scores of its configurations that can be chosen."""
        means = self.search.complete_means
        return {arm: means[means.index.map(self.arm_of) == arm] for arm in self.arms}

    @cached_property
    def compared(self) -> list[tournament.RuleResult]:
        """Each other arm compared with the first on fresh seeds, best first; empty before the first
        arm has run on them.
        """
        first = self.arms[0]
        scores = self.fresh_scores
        if not finite_scores(scores).get(first):
            return []
        tunings = {arm: self._tuning(arm) for arm in scores}
        mode = self.search.objective.mode
        return tournament.compare_rules(scores, first, tunings, mode, repeats=self.repeats)

    def _tuning(self, arm: str) -> tournament.Tuning:
        """Return an arm's tuning: the mean scores of its configurations, and the values by which
        the best one was chosen.
        """
        means = self.means[arm]
        chosen_by = None
        if self.chosen_by:  # a run may have a guard's value and no score
            means = means[means.index.isin(list(self.chosen_by))]
            chosen_by = [self.chosen_by[number] for number in means.index]
        parameters = int(self._varied.sum(axis="columns")[arm])
        return tournament.Tuning(list(means), parameters, chosen_by=chosen_by)

    def setting_of(self, arm: str) -> str:
        """Return the configuration of an arm that ran on fresh seeds, else the arm's first
        configuration.
        """
        numbers = [number for number, of in self.arm_of.items() if of == arm]
        confirmed = () if self.fresh is None else self.fresh.seed_scores
        return next((number for number in numbers if number in confirmed), numbers[0])

    @cached_property
    def fresh_scores(self) -> Scores:
        """Arm -> fresh seed -> score; NaN for a failed seed."""
        scores: SeedScores = {}
        trials = () if self.fresh is None else self.fresh.trials
        for trial in trials:
            if trial.state in ("COMPLETE", "FAIL"):
                scores.setdefault(self.arm_of[trial.configuration], {})[trial.seed] = trial.score
        return scores

    @cached_property
    def grid(self) -> peaks.Grid | None:
        """The grid of the only tuned parameter. None unless all arms ran the same positive values
        on the same seeds, with as many values and seeds as `peaks` needs.

        A failed trial gets the worst score of all.
        """
        sign = self.search.objective.sign
        within = self._varied
        tuned = list(within.columns[within.any()])
        if len(self.arms) < 2 or len(tuned) != 1:
            return None
        ended = self.search.table[self.search.table.state.isin(["COMPLETE", "FAIL"])]
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
        return peaks.Grid(name, self.arms, np.array(levels), scores, sign)
