"""Update rules over all confirmed sweeps: the gain of each on fresh seeds, a row a setting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dashboards.results import Results
from dashboards.statistics.verdict import Undecided
from dashboards.words import reason, refusal, signed

HEADINGS = (
    "rule",
    "against",
    "metric",
    "model",
    "task",
    "sweep",
    "gain",
    "90% interval",
    "seeds",
    "",
)


@dataclass(frozen=True)
class Measured:
    """A rule against a baseline's on the fresh seeds of one sweep; without numbers where it is left
    out.
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
    chosen: str = ""  # how it came to the fresh seeds, where not every rule did
    left_out: str = ""  # why it does not count

    @property
    def cells(self) -> list[str]:
        """The row of a table under ``HEADINGS``."""
        low, high = map(signed, self.interval)
        words = [self.rule, self.baseline, self.metric, self.model, self.task, self.sweep]
        return [*words, signed(self.gain), f"{low} to {high}", str(self.seeds), self.chosen]


def measured_in(results: Results) -> list[Measured]:
    """Return every rule that a sweep tried against that of its baseline; by the finalist of it that
    the search liked best.

    Of several finalists of a rule, fresh seeds must not choose: the best of them would be too good.
    """
    fresh = results.fresh
    # a trial that never started recorded no rule
    started = results.table[results.table.state != "FAIL"]
    of = dict(zip(started.configuration, started.rule, strict=True))
    metric = "/".join(results.objective.metric.split("/")[:2])
    nothing = Measured(results.name, results.model, results.task, metric, "", "")
    if fresh is None:
        return [replace(nothing, left_out="not confirmed on fresh seeds")]
    base = fresh.baseline_label
    numbers = fresh.numbers
    if base is None or numbers[base] not in of:
        return [replace(nothing, left_out="its baseline has no score on fresh seeds")]
    nothing = replace(nothing, baseline=str(of[numbers[base]]))
    means = results.whole_means * results.objective.sign
    ranked = sorted(
        set(fresh.comparable.label), key=lambda label: -means.get(numbers[label], -math.inf)
    )
    chosen = {str(of[numbers[label]]): label for label in reversed(ranked)}
    rules = [rule for rule in dict.fromkeys(map(str, of.values())) if rule != nothing.baseline]
    if not rules:
        return [replace(nothing, left_out="it tried no other rule than its baseline's")]
    # A rule may owe its place to chance where another was left behind.
    behind = not results.arms and any(rule not in chosen for rule in rules)
    nothing = replace(nothing, chosen="chosen for its score" if behind else "")
    return [
        _judged(results, fresh, chosen[rule], replace(nothing, rule=rule))
        if rule in chosen
        else replace(nothing, rule=rule, left_out="tried, and not among the finalists")
        for rule in rules
    ]


def _judged(results: Results, fresh: Results, label: str, nothing: Measured) -> Measured:
    judged = results.verdict_on_fresh(label)
    if judged is None:
        return replace(nothing, left_out="its baseline has no score on fresh seeds")
    if isinstance(judged, Undecided):
        return replace(nothing, left_out=reason(judged))
    interval = judged.interval
    if results.arms:  # rules at their own best: tuning variance counts
        arm = results.arm_of[fresh.numbers[label]]
        standing = next(rule for rule in results.arm_standings if rule.rule == arm)
        if standing.interval is None:
            return replace(nothing, left_out=refusal(standing))
        interval = standing.interval
    sign = results.objective.sign
    low, high = interval[::sign]
    return replace(
        nothing,
        seeds=judged.seeds,
        gain=sign * judged.difference,
        interval=(sign * low, sign * high),
    )


def gathered(sweeps: Sequence[Results]) -> tuple[list[Measured], list[Measured]]:
    """Return the rules by setting, each rule's best gain first, and what does not count.

    A model with a task is one setting, however many sweeps measured it: the one with the most fresh
    seeds counts.
    """
    settings: dict[tuple[str, ...], Measured] = {}
    left = []
    for row in sorted(
        (row for results in sweeps for row in measured_in(results)), key=lambda row: -row.seeds
    ):
        if row.left_out:
            left.append(row)
            continue
        first = settings.setdefault((row.rule, row.baseline, row.metric, row.model, row.task), row)
        if first is not row:
            left.append(replace(row, left_out=f"{first.sweep} has as many seeds or more"))
    ordered = sorted(
        settings.values(), key=lambda row: (row.metric, row.rule, row.baseline, -row.gain)
    )
    return ordered, left
