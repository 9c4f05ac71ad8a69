"""The sentence at the top of a report: what won, by how much, and whether that is more than noise."""

import math
from typing import Any

import pandas as pd

from dashboards.estimates import seed_deviation
from dashboards.figures import configuration_label
from dashboards.queries import Sweep
from dashboards.theme import number, rows, signed


def verdict(sweep: Sweep) -> list[str]:
    """One to three sentences, the winner first."""
    configurations = sweep.configurations()
    states = sweep.trials.state.value_counts()
    counts = ", ".join(f"{count} {_WORDS.get(str(state), str(state))}" for state, count in states.items())
    told = f"{len(sweep.trials)} trials: {counts}." if len(sweep.trials) else "The sweep has no trials yet."
    if configurations.empty:
        return ["No trial has finished with a score yet.", told]
    best = _best(configurations, sweep.objective.mode)
    spread = f" ({number(best.low)} to {number(best.high)})" if best.seeds > 1 else ""
    first = (
        f"Best: configuration {configuration_label(best)} with {sweep.objective.metric} {number(best.average)}, "
        f"mean of {best.seeds} seed{'s' * (best.seeds > 1)}{spread}"
    )
    base = _baseline(configurations, best)
    if base is None:
        return [first + "; no plain baseline (alpha 0, eta 0) to compare with.", told]
    if base.configuration == best.configuration:
        return [first + ": the plain baseline itself. No searched setting did better.", told]
    difference = best.average - base.average
    first += f", {signed(difference)} against plain {base.algorithm} ({number(base.average)})."
    return [first, _noise(sweep, best, base, difference, len(configurations)), told]


_WORDS = {"COMPLETE": "complete", "PRUNED": "stopped early", "FAIL": "failed", "RUNNING": "running"}
_WORDS["KILLED"] = "interrupted"


def _noise(sweep: Sweep, best: Any, base: Any, difference: float, tried: int) -> str:
    deviation = seed_deviation(sweep.complete())
    if math.isnan(deviation):
        return "Every configuration ran with one seed, so nothing tells this difference from chance."
    error = deviation * math.sqrt(1 / best.seeds + 1 / base.seeds)
    clear = abs(difference) > 2 * error
    judged = "is larger than" if clear else "is within"
    caution = f"as the best of {tried} it is flattered by the choice; repeat it on fresh seeds"
    return (
        f"Seeds of one configuration differ by a standard deviation of {number(deviation, 2)}, so the difference "
        f"{judged} what seeds alone explain (2 standard errors: {number(2 * error, 2)}); {caution}."
    )


def _best(configurations: pd.DataFrame, mode: str) -> Any:
    """The winning row, its mean as ``average`` (a named tuple cannot hold ``mean`` apart from a method)."""
    ordered = configurations.rename(columns={"mean": "average"}).sort_values("average", kind="stable")
    table = rows(ordered)
    return table[-1] if mode == "max" else table[0]


def _baseline(configurations: pd.DataFrame, best: Any) -> Any | None:
    """The plain configuration of the winner's algorithm, else any plain one."""
    plain = configurations[(configurations.alpha == 0) & (configurations.eta == 0)]
    own = plain[plain.algorithm == best.algorithm]
    chosen = rows((own if len(own) else plain).rename(columns={"mean": "average"}))
    return chosen[0] if chosen else None
