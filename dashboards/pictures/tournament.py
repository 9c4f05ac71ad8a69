"""Rules at their own best: the best setting by tuning trials, and every rule against the first on fresh seeds."""

import html

import pandas as pd

from dashboards.labels import colours
from dashboards.pictures.judged import comparable
from dashboards.pictures.theme import MUTED, Picture, add_points, figure, label_rows, rows, spread
from dashboards.statistics.tournament import Standing, standings
from dashboards.sweep import Sweep
from dashboards.words import number, rule_bounds, rules

_SEEDS = 8  # of `sweep confirm`, where arms were tuned
_HEADINGS = ("rule", "trials", "best setting", "median trial", "best, tuned", "fresh seeds", "tuning gained")


def tournament(sweep: Sweep) -> Picture | None:
    """Best score so far against tuning trials, a line a rule; differences of rules; their table."""
    if not sweep.arms:
        return None
    curves, shades = tuning_curves(sweep), colours(sweep.arms)
    found = fresh_standings(sweep)
    drawing = figure("tuning trials of the rule", f"best {sweep.objective.metric} so far")
    for arm, own in curves.groupby("arm"):
        notes = [html.escape(f"{arm}: {number(row.best)} after {row.trial}, {row.label}") for row in rows(own)]
        line = {"color": shades[str(arm)], "shape": "hv", "width": 2}
        add_points(drawing, own.trial, own.best, notes, mode="lines+markers", name=arm, line=line)
    drawing.update_xaxes(dtick=max(1, len(curves) // (12 * len(sweep.arms))))
    figures = (drawing, _differences(sweep, found, shades)) if found else (drawing,)
    text = (
        "The score of the best setting so far against the trials that tuned it, a line a rule: where a line still "
        "climbs, more of them may help its rule. The best of many is a little too good; only fresh seeds compare."
    )
    if found:
        text += (
            f" Below, each rule at its best against {sweep.arms[0]} at its own on the same fresh seeds, with "
            f"90% intervals that hold for all rules together and allow for tuning variance."
        )
    headings, table = rule_table(sweep)
    return Picture("tournament", "Rules at their own best", text, figures, (headings, table))


def tuning_curves(sweep: Sweep) -> pd.DataFrame:
    """arm, trial (its place among the arm's configurations, from 1), best (mean score so far), label.

    Failed and stopped configurations take a place and score nothing.
    """
    scores = comparable(sweep).groupby("configuration").score.mean()
    failed = set(sweep.trials[sweep.trials.state.isin(["FAIL", "PRUNED"])].configuration)
    found = []
    for arm in sweep.arms:
        best, label = None, ""
        own = sweep.trials[sweep.trials.arm == arm].drop_duplicates("configuration")
        own = own.sort_values("configuration", key=lambda numbers: numbers.astype(int))
        for trial, row in enumerate(rows(own), start=1):
            score = None if row.configuration in failed else scores.get(row.configuration)
            if score is not None and (best is None or (score > best) == (sweep.objective.mode == "max")):
                best, label = score, row.label
            if best is not None:
                found.append((arm, trial, best, label))
    return pd.DataFrame(found, columns=["arm", "trial", "best", "label"])


def tournament_line(sweep: Sweep) -> str:
    """The finding on rules; what comes next where there are no fresh seeds."""
    base, found = sweep.arms[0], fresh_standings(sweep)
    counts = sweep.trials[sweep.trials.arm != ""].groupby("arm").configuration.nunique()
    budget = f"{counts.min()} to {counts.max()}" if counts.min() != counts.max() else f"{counts.max()}"
    tuned = f"{len(sweep.arms)} rules were tuned by {budget} configurations each"
    if not found:
        trials = len(sweep.arms) * _SEEDS
        return (
            f"{tuned}. On the seeds that chose it the best of each is too good, so nothing is compared yet. Next: "
            f"`sweep confirm {sweep.name}` runs the best of every rule on {_SEEDS} fresh seeds: {trials} trials."
        )
    return f"{rules(found, base)} {tuned}."


def rule_table(sweep: Sweep) -> tuple[list[str], list[list[object]]]:
    """Headings and rows, a rule each: budget, best setting, scores, gain of tuning, difference and interval."""
    found = {one.rule: one for one in fresh_standings(sweep)}
    curves, fresh = tuning_curves(sweep), _fresh_scores(sweep)
    scored = sweep.trials[sweep.trials.score.notna()]
    table: list[list[object]] = []
    for arm in sweep.arms:
        own, one = curves[curves.arm == arm], found.get(arm)
        median = scored[scored.arm == arm].groupby("configuration").score.mean().median()
        mean = pd.Series(fresh.get(arm, {}), dtype=float).mean()
        label, best = (own.label.iloc[-1], own.best.iloc[-1]) if len(own) else ("", None)
        trials = sweep.trials[sweep.trials.arm == arm].configuration.nunique()
        low, high = (one.interval or (None, None)) if one else (None, None)
        table.append([arm, trials, label, median, best, mean, mean - median, one and one.difference, low, high])
    shown = len(_HEADINGS) + 3 if found else _HEADINGS.index("fresh seeds")
    return [*_HEADINGS, f"against {sweep.arms[0]}", "low", "high"][:shown], [row[:shown] for row in table]


def _fresh_scores(sweep: Sweep) -> dict[str, dict[str, float]]:
    """Rule -> fresh seed -> score; NaN where the trial failed."""
    fresh = sweep.confirmation
    if fresh is None:
        return {}
    arms = dict(zip(sweep.trials.configuration, sweep.trials.arm, strict=True))
    found: dict[str, dict[str, float]] = {}
    for row in rows(fresh.trials[fresh.trials.state.isin(["COMPLETE", "FAIL"])]):
        found.setdefault(str(arms[row.configuration]), {})[row.seed] = row.score
    return found


def fresh_standings(sweep: Sweep) -> list[Standing]:
    """Every rule but the first against it on fresh seeds, the best first; none before those were run."""
    fresh, base = _fresh_scores(sweep), sweep.arms[0]
    if len(fresh) < 2 or not pd.Series(fresh.get(base, {}), dtype=float).notna().any():
        return []
    means = comparable(sweep).groupby(["arm", "configuration"]).score.mean()
    tuned = {arm: list(means[arm]) for arm in sweep.arms if arm in means.index.get_level_values("arm")}
    return standings(fresh, base, tuned, sweep.objective.mode)  # type: ignore[arg-type]


def _differences(sweep: Sweep, found: list[Standing], shades: dict[str, str]) -> object:
    drawing = figure(f"difference to {sweep.arms[0]} on fresh seeds", height=90 + 52 * len(found))
    drawing.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    for one in found:
        low, high = one.interval or (one.difference, one.difference)
        note, bar = html.escape(f"{one.rule}: {rule_bounds(one)}"), spread(one.difference, low, high)
        diamond = {"color": shades[one.rule], "size": 13, "symbol": "diamond"}
        add_points(drawing, [one.difference], [one.rule], note, name=one.rule, marker=diamond, error_x=bar)
    label_rows(drawing, [one.rule for one in reversed(found)])
    return drawing
