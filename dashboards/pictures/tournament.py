"""Rules at their own best: the best setting by tuning trials, and every rule against the first on fresh seeds."""

import html

import pandas as pd

from dashboards.labels import colours
from dashboards.pictures.theme import MUTED, Picture, add_points, figure, label_rows, rows
from dashboards.results import Results
from dashboards.statistics.tournament import Standing
from dashboards.words import number, rule_bounds, rules

_SEEDS = 8  # of `sweep confirm`, where arms were tuned
_HEADINGS = ("rule", "trials", "best setting", "median trial", "best, tuned", "fresh seeds", "tuning gained")


def tournament(results: Results) -> Picture | None:
    """Best score so far against tuning trials, a line a rule; differences of rules; their table."""
    if not results.arms:
        return None
    curves, shades = tuning_curves(results), colours(results.arms)
    found = [one for one in results.arm_standings if one.interval is not None]
    drawing = figure("tuning trials of the rule", f"best {results.objective.metric} so far")
    for arm, own in curves.groupby("arm"):
        notes = [html.escape(f"{arm}: {number(row.best)} after {row.trial}, {row.label}") for row in rows(own)]
        line = {"color": shades[str(arm)], "shape": "hv", "width": 2}
        add_points(drawing, own.trial, own.best, notes, mode="lines+markers", name=arm, line=line)
    drawing.update_xaxes(dtick=max(1, len(curves) // (12 * len(results.arms))))
    figures = (drawing, _differences(results, found, shades)) if found else (drawing,)
    text = (
        "The score of the best setting so far against the trials that tuned it, a line a rule: where a line still "
        "climbs, more of them may help its rule. The best of many is a little too good; only fresh seeds compare."
    )
    if found:
        text += (
            f" Below, each rule at its best against {results.arms[0]} at its own on the same fresh seeds, with "
            f"90% intervals that hold for all rules together and allow for tuning variance."
        )
    headings, table = rule_table(results)
    return Picture("tournament", "Rules at their own best", text, figures, (headings, table))


def tuning_curves(results: Results) -> pd.DataFrame:
    """arm, trial (its place among the arm's configurations, from 1), best (mean score so far), label.

    Failed and stopped configurations take a place and score nothing.
    """
    scores = results.comparable.groupby("configuration").score.mean()
    failed = set(results.table[results.table.state.isin(["FAIL", "PRUNED"])].configuration)
    found = []
    for arm in results.arms:
        best, label = None, ""
        own = results.table[results.table.arm == arm].drop_duplicates("configuration")
        own = own.sort_values("configuration", key=lambda numbers: numbers.astype(int))
        for trial, row in enumerate(rows(own), start=1):
            score = None if row.configuration in failed else scores.get(row.configuration)
            if score is not None and (best is None or (score > best) == (results.objective.mode == "max")):
                best, label = score, row.label
            if best is not None:
                found.append((arm, trial, best, label))
    return pd.DataFrame(found, columns=["arm", "trial", "best", "label"])


def tournament_line(results: Results) -> str:
    """The finding on rules; what comes next where there are no fresh seeds."""
    base, found = results.arms[0], results.arm_standings
    counts = results.table[results.table.arm != ""].groupby("arm").configuration.nunique()
    budget = f"{counts.min()} to {counts.max()}" if counts.min() != counts.max() else f"{counts.max()}"
    tuned = f"{len(results.arms)} rules were tuned by {budget} configurations each"
    if not found:
        trials = len(results.arms) * _SEEDS
        step = f"run the best of every rule on {_SEEDS} fresh seeds, and judge again with them as a second table"
        if results.name:
            step = f"`sweep confirm {results.name}` runs the best of every rule on {_SEEDS} fresh seeds"
        return (
            f"{tuned}. On the seeds that chose it the best of each is too good, so nothing is compared yet. "
            f"Next: {step}: {trials} trials."
        )
    return f"{rules(found, base)} {tuned}."


def rule_table(results: Results) -> tuple[list[str], list[list[object]]]:
    """Headings and rows, a rule each: budget, best setting, scores, gain of tuning, difference and interval."""
    found = {one.rule: one for one in results.arm_standings}
    curves, fresh = tuning_curves(results), results.fresh_arm_scores
    scored = results.table[results.table.score.notna()]
    table: list[list[object]] = []
    for arm in results.arms:
        own, one = curves[curves.arm == arm], found.get(arm)
        median = scored[scored.arm == arm].groupby("configuration").score.mean().median()
        mean = pd.Series(fresh.get(arm, {}), dtype=float).mean()
        label, best = (own.label.iloc[-1], own.best.iloc[-1]) if len(own) else ("", None)
        trials = results.table[results.table.arm == arm].configuration.nunique()
        low, high = (one.interval or (None, None)) if one else (None, None)
        table.append([arm, trials, label, median, best, mean, mean - median, one and one.difference, low, high])
    shown = len(_HEADINGS) + 3 if found else _HEADINGS.index("fresh seeds")
    return [*_HEADINGS, f"against {results.arms[0]}", "low", "high"][:shown], [row[:shown] for row in table]


def _differences(results: Results, found: list[Standing], shades: dict[str, str]) -> object:
    drawing = figure(f"difference to {results.arms[0]} on fresh seeds", height=90 + 52 * len(found))
    drawing.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    for one in found:
        low, high = one.interval or (one.difference, one.difference)
        note = html.escape(f"{one.rule}: {rule_bounds(one)}")
        bar = {
            "type": "data",
            "symmetric": False,
            "array": [high - one.difference],
            "arrayminus": [one.difference - low],
        }
        diamond = {"color": shades[one.rule], "size": 13, "symbol": "diamond"}
        add_points(drawing, [one.difference], [one.rule], note, name=one.rule, marker=diamond, error_x=bar)
    label_rows(drawing, [one.rule for one in reversed(found)])
    return drawing
