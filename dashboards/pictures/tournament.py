"""Plot of rules at their own best: best score against tuning trials, and each rule compared with
the first on fresh seeds.
"""

import html
from collections import Counter
from dataclasses import dataclass

import pandas as pd

from dashboards.pictures.peaks import arm_colors, peak_line
from dashboards.pictures.theme import MUTED, Picture, add_points, figure, label_rows, rows
from dashboards.results import Results
from dashboards.statistics.tournament import RuleResult
from dashboards.words import failures, guards, number, percent_interval, rule_bounds, rules, signed


@dataclass(frozen=True, kw_only=True)
class _RuleRow:
    """One rule's row of the table; None or NaN if nothing was measured."""

    rule: str
    trials: int  # configurations that were tried
    setting: str  # setting with the best search score
    median: float  # median search score
    best: float | None  # best search score
    fresh: float  # mean score on fresh seeds
    gain: float | None  # gain over the first rule, on fresh seeds
    interval: tuple[float, float] | None  # interval of the gain

    @property
    def search_cells(self) -> list[object]:
        """The cells of the row in the search's table."""
        return [self.rule, self.trials, self.setting, self.median, self.best]

    @property
    def fresh_cells(self) -> list[object]:
        """The additional cells if the rules ran on fresh seeds."""
        interval = None
        if self.interval is not None:
            interval = f"{signed(self.interval[0])} to {signed(self.interval[1])}"
        return [self.fresh, self.fresh - self.median, self.gain, interval]


def tournament(results: Results) -> Picture | None:
    """Plot the best score so far against tuning trials, one line per rule; then the differences on
    fresh seeds, and a table. None without arms.
    """
    if not results.arms:
        return None
    curves = tuning_curves(results)
    shades = arm_colors(results)
    compared = [result for result in results.tuned_rules.compared if result.interval is not None]
    drawing = figure("tuning trials per rule", f"best {results.objective.metric} so far")
    for arm, curve in curves.groupby("arm"):
        notes = [
            html.escape(f"{arm}: {number(row.best)} after {row.trial}, {row.label}")
            for row in rows(curve)
        ]
        line = {"color": shades[str(arm)], "shape": "hv", "width": 2}
        add_points(
            drawing, curve.trial, curve.best, notes, mode="lines+markers", name=arm, line=line
        )
    drawing.update_xaxes(dtick=max(1, len(curves) // (12 * len(results.arms))))
    figures = (drawing, _differences(results, compared, shades)) if compared else (drawing,)
    text = (
        "The score of the best setting so far against the number of tuning trials, one line "
        "per rule: where a line still improves, more trials may help its rule. The best of "
        "many scores is biased upward, so only fresh seeds can compare rules."
    )
    if compared:
        text += (
            f" Below: each rule at its best compared with {results.arms[0]} at its best, on "
            "the same fresh seeds. The "
            f"{percent_interval(compared[0].found.coverage)}s are corrected "
            "for the number of rules and include tuning variance."
        )
    return Picture("tournament", "Rules at their own best", text, figures, rule_table(results))


def tuning_curves(results: Results) -> pd.DataFrame:
    """Return rows of arm, trial (index of the configuration within the arm, from 1), best (best
    mean score so far) and label.

    Failed and pruned configurations count as trials without a score.
    """
    points = []
    sign = results.objective.sign
    for arm in results.arms:
        best = None
        label = ""
        tried = results.table[results.table.arm == arm].drop_duplicates("configuration")
        tried = tried.sort_values("configuration", key=lambda numbers: numbers.astype(int))
        for trial, row in enumerate(rows(tried), start=1):
            score = results.complete_means.get(row.configuration)
            if score is not None and (best is None or sign * score > sign * best):
                best = score
                label = row.label
            if best is not None:
                points.append((arm, trial, best, label))
    return pd.DataFrame(points, columns=["arm", "trial", "best", "label"])


def tournament_line(results: Results) -> str:
    """State the result about the rules, or why they are not compared."""
    base = results.arms[0]
    compared = results.tuned_rules.compared
    counts = results.table[results.table.arm != ""].groupby("arm").configuration.nunique()
    budget = str(counts.max())
    if counts.min() < counts.max():
        budget = f"{counts.min()} to {counts.max()}"
    tuned = f"{len(results.arms)} rules were tuned with {budget} configurations each"
    if not compared and results.tuned_rules.grid is not None:
        return f"{peak_line(results)} {tuned}."
    if not compared and results.fresh_finished:
        return f"{tuned}. {base} has no score on fresh seeds, so nothing is compared."
    if not compared:
        return (
            f"{tuned}. Each best score is biased upward on the seeds that selected it, so "
            "nothing is compared yet."
        )
    failed: Counter[str] = Counter()
    if results.fresh is not None:
        for trial in results.fresh.trials:
            if trial.state == "FAIL":
                failed[results.tuned_rules.arm_of[trial.configuration]] += 1
    guarded = []
    for result in compared:
        if result.better:
            guarded.append(guards(results.guards_of_arm(result.rule), result.rule))
    sentences = [rules(compared, base), *guarded, f"{tuned}.", failures(failed)]
    return " ".join(sentence for sentence in sentences if sentence)


def rule_table(results: Results) -> tuple[list[str], list[list[object]]]:
    """Return headings and one row per rule: budget, best setting, scores, gain from tuning,
    difference, interval. The columns of fresh seeds are left out if no rule ran on them.
    """
    headings = ["rule", "trials", "best setting", "median search score", "best search score"]
    by_rule = _rule_rows(results)
    if not results.tuned_rules.compared:
        return headings, [row.search_cells for row in by_rule]
    headings += [
        "fresh seeds",
        "gain from tuning",
        f"against {results.arms[0]}",
        percent_interval(results.tuned_rules.compared[0].found.coverage),
    ]
    return headings, [[*row.search_cells, *row.fresh_cells] for row in by_rule]


def _rule_rows(results: Results) -> list[_RuleRow]:
    """Return the rules' rows, the first rule first."""
    compared = {result.rule: result for result in results.tuned_rules.compared}
    curves = tuning_curves(results)
    by_rule = []
    for arm in results.arms:
        curve = curves[curves.arm == arm]
        result = compared.get(arm)
        fresh = pd.Series(results.tuned_rules.fresh_scores.get(arm, {}), dtype=float)
        trials = results.table[results.table.arm == arm].configuration.nunique()
        by_rule.append(
            _RuleRow(
                rule=arm,
                trials=trials,
                setting=curve.label.iloc[-1] if len(curve) else "",
                median=results.tuned_rules.means[arm].median(),
                best=curve.best.iloc[-1] if len(curve) else None,
                fresh=fresh.mean(),
                gain=None if result is None else result.difference,
                interval=None if result is None else result.interval,
            )
        )
    return by_rule


def _differences(results: Results, compared: list[RuleResult], shades: dict[str, str]) -> object:
    drawing = figure(
        f"difference from {results.arms[0]} on fresh seeds", height=90 + 52 * len(compared)
    )
    drawing.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    for result in compared:
        low, high = result.interval or (result.difference, result.difference)
        note = html.escape(f"{result.rule}: {rule_bounds(result)}")
        bar = {
            "type": "data",
            "symmetric": False,
            "array": [high - result.difference],
            "arrayminus": [result.difference - low],
        }
        diamond = {"color": shades[result.rule], "size": 13, "symbol": "diamond"}
        add_points(
            drawing,
            [result.difference],
            [result.rule],
            note,
            name=result.rule,
            marker=diamond,
            error_x=bar,
        )
    label_rows(drawing, [result.rule for result in reversed(compared)])
    return drawing
