"""Improvement of each update rule on fresh seeds, over all confirmed sweeps: one row per rule,
model and task.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dashboards.results import Results
from dashboards.statistics.levels import coverage
from dashboards.statistics.verdict import Undecided
from dashboards.words import percent_interval, reason, refusal, signed

HEADINGS = (
    "rule",
    "against",
    "metric",
    "model",
    "task",
    "sweep",
    "gain",
    percent_interval(coverage()),
    "seeds",
    "",
)


@dataclass(frozen=True)
class RuleComparison:
    """A rule compared with the baseline's rule on one sweep's fresh seeds. A comparison that is
    left out has no numbers.
    """

    sweep: str
    model: str
    task: str
    metric: str
    rule: str
    baseline: str
    seeds: int = 0
    gain: float = math.nan  # positive is better
    interval: tuple[float, float] = (math.nan, math.nan)  # each bound has 95% coverage
    chosen: str = ""  # selection note, if not every rule reached the fresh seeds
    left_out: str = ""  # reason for exclusion; empty if it is included

    @property
    def cells(self) -> list[str]:
        """Table row in the order of ``HEADINGS``."""
        low, high = map(signed, self.interval)
        words = [self.rule, self.baseline, self.metric, self.model, self.task, self.sweep]
        return [*words, signed(self.gain), f"{low} to {high}", str(self.seeds), self.chosen]


def rule_comparisons(results: Results) -> list[RuleComparison]:
    """Compare each rule that a sweep tried with the baseline's rule. The rule's finalist with the
    best search score stands for it.

    Fresh seeds must not choose among several finalists of a rule: the best one would be biased
    upward.
    """
    fresh = results.fresh
    # a trial that never started recorded no rule
    started = results.table[results.table.state != "FAIL"]
    rule_of = dict(zip(started.configuration, started.rule, strict=True))
    metric = "/".join(results.objective.metric.split("/")[:2])
    blank = RuleComparison(results.name, results.model, results.task, metric, "", "")
    if fresh is None:
        return [replace(blank, left_out="not confirmed on fresh seeds")]
    base = fresh.compared_with
    if base is None or base not in rule_of:
        return [replace(blank, left_out="the baseline has no score on fresh seeds")]
    blank = replace(blank, baseline=str(rule_of[base]))
    means = results.complete_means * results.objective.sign
    best_first = sorted(
        set(fresh.comparable.configuration), key=lambda number: -means.get(number, -math.inf)
    )
    chosen: dict[str, str] = {}  # rule -> the number of its best finalist
    for number in best_first:
        chosen.setdefault(str(rule_of[number]), number)
    rules = list(dict.fromkeys(map(str, rule_of.values())))
    if blank.baseline in rules:
        rules.remove(blank.baseline)
    if not rules:
        return [replace(blank, left_out="the sweep tried only the baseline's rule")]
    # If the search dropped a rule, the remaining rules may have been selected by chance.
    if not results.arms and not set(rules) <= set(chosen):
        blank = replace(blank, chosen="chosen for its score")
    compared = []
    for rule in rules:
        row = replace(blank, rule=rule)
        if rule in chosen:
            compared.append(_judged(results, chosen[rule], row))
        else:
            compared.append(replace(row, left_out="tried, but not a finalist"))
    return compared


def _judged(results: Results, number: str, nothing: RuleComparison) -> RuleComparison:
    judged = results.verdict_on_fresh(number)
    if judged is None:
        return replace(nothing, left_out="the baseline has no score on fresh seeds")
    if isinstance(judged, Undecided):
        return replace(nothing, left_out=reason(judged))
    interval = judged.interval
    if results.arms:  # rules at their own best: use the interval that includes tuning variance
        arm = results.tuned_rules.arm_of[number]
        result = next(rule for rule in results.tuned_rules.compared if rule.rule == arm)
        if result.interval is None:
            return replace(nothing, left_out=refusal(result))
        interval = result.interval
    sign = results.objective.sign
    low, high = interval[::sign]
    return replace(
        nothing,
        seeds=judged.seeds,
        gain=sign * judged.difference,
        interval=(sign * low, sign * high),
    )


def collect_comparisons(
    sweeps: Sequence[Results],
) -> tuple[list[RuleComparison], list[RuleComparison]]:
    """Return the included comparisons (by metric, rule and baseline, and among equals the largest
    improvement first), and the excluded ones. Each pair of model and task is included once per
    metric, rule and baseline: the sweep with the most fresh seeds is used.
    """
    rows: list[RuleComparison] = []
    for results in sweeps:
        rows += rule_comparisons(results)
    # the sort is stable: rows with the same number of seeds keep their order
    rows.sort(key=lambda row: row.seeds, reverse=True)
    settings: dict[tuple[str, ...], RuleComparison] = {}
    excluded = []
    for row in rows:
        if row.left_out:
            excluded.append(row)
            continue
        first = settings.setdefault((row.rule, row.baseline, row.metric, row.model, row.task), row)
        if first is not row:
            instead = f"{first.sweep} is used instead: it has at least as many seeds"
            excluded.append(replace(row, left_out=instead))
    ordered = sorted(
        settings.values(), key=lambda row: (row.metric, row.rule, row.baseline, -row.gain)
    )
    return ordered, excluded
