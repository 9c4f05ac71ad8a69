"""Plots of trials over time: learning curves, training health, failures."""

import html
import math
from typing import Any

import pandas as pd

from dashboards.labels import colors
from dashboards.pictures.theme import MUTED, Picture, add_points, figure, hover, rows
from dashboards.results import Results
from dashboards.trial import TRAINING_CURVES
from dashboards.words import number
from loptune.declared_metrics import unit_of
from loptune.errors import joined

_MANY_TRIALS = 20  # above this, lines are faint, so that dense regions stand out
MAX_LINES = 100
_MEAN_WIDTH = 4.5  # line width of a mean over seeds
_MAX_EQUAL = 4  # maximum number of groups of identical curves to list
_CURVE_TITLES = {
    "policy/kl": "KL to the reference",
    "policy/entropy": "Entropy",
    "policy/clip_fraction": "Clip fraction",
    "rollout/completion_length": "Completion length",
    "optim/grad_norm": "Gradient norm",
    "reward/format_failures": "Fraction of answers that could not be parsed",
    "reward/timeouts": "Reward calls stopped by a limit",
    "reward/errors": "Reward calls that raised an error",
}


def learning_curves(results: Results) -> Picture | None:
    """Plot the objective metric over training steps, or over the axis of the comparison, with one
    line per trial. None if no trial has a curve of it.
    """
    metric = results.objective.metric
    values = results.history(metric)
    if values.empty:
        return None
    place = results.place if results.at_equal_amounts else "step"
    title = place if results.at_equal_amounts else "training step"
    drawing = figure(title, metric, height=420)
    if results.budget is not None:
        drawing.add_vline(x=results.budget.at, line={"color": MUTED, "width": 1, "dash": "dot"})
    trial_lines(drawing, results, values, width=1.6, place=place)
    means = _mean_lines(drawing, results, values, place)
    ends = values.sort_values("step").groupby("trial").value.agg(["first", "last"])
    change = ends["last"] - ends["first"]
    rising = results.objective.sign * change > 0
    text = (
        f"From the first to the last evaluation, {int(rising.sum())} of {len(ends)} trials "
        "improve; the "
        f"median change is {change.median():+.3f} ({change.min():+.3f} to {change.max():+.3f}); "
        "dotted lines are trials that failed or were "
        f"stopped.{_thinning_note(results.table)}{_coinciding(values)}"
    )
    if means:
        text += f" Thick lines are means over the complete seeds of {joined(means)}."
    return Picture("curves", "Learning curves", text, (drawing,))


def _mean_lines(drawing: Any, results: Results, values: pd.DataFrame, place: str) -> list[str]:
    """Add the mean over seeds of the baseline and of the best configuration, at the steps that all
    their complete trials have; return the labels of configurations with several seeds.
    """
    table = results.table
    shades = colors(table.rule)
    shown = [results.compared_with]
    if results.verdict is not None:
        shown.append(results.verdict.best)
    drawn = []
    for configuration in dict.fromkeys(shown):
        complete = table[(table.configuration == configuration) & (table.state == "COMPLETE")]
        if configuration is None or len(complete) < 2:
            continue
        label = results.labels[configuration]
        of_label = values[values.trial.isin(complete.trial)]
        by_step = of_label.pivot_table(index="step", columns="trial", values="value").dropna()
        if by_step.empty:
            continue
        rule = complete.rule.iloc[0]
        add_points(
            drawing,
            by_step.index,
            by_step.mean(axis="columns"),
            html.escape(f"{label}, mean of {len(complete)} seeds"),
            hovertemplate=f"%{{hovertext}}<br>{place} %{{x}}: %{{y:.3~g}}<extra></extra>",
            mode="lines",
            name=rule,
            line={"color": shades[rule], "width": _MEAN_WIDTH},
        )
        drawn.append(str(label))
    return drawn


def _coinciding(values: pd.DataFrame) -> str:
    """List trials whose curves are equal at every step; empty if there are none."""
    groups: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for trial, curve in values.groupby("trial"):
        points = tuple(zip(curve.step, curve.value, strict=True))
        groups.setdefault(points, []).append(str(trial))
    equal = [" and ".join(trials) for trials in groups.values() if len(trials) > 1]
    if not equal:
        return ""
    more = f" and {len(equal) - _MAX_EQUAL} more groups" if len(equal) > _MAX_EQUAL else ""
    return f" These curves coincide: {'; '.join(equal[:_MAX_EQUAL])}{more}."


def training_health(results: Results) -> Picture | None:
    """Plot training metrics over training steps; metrics that are always 0 are left out. None if
    none is left.
    """
    drawings = []
    ends = []
    for metric in TRAINING_CURVES:
        values = results.history(metric)
        if not values.value.any():
            continue
        unit = unit_of(metric)
        label = _CURVE_TITLES[metric]
        if unit:
            label += f" [{unit}]"
        drawing = figure("training step", label, height=280)
        trial_lines(drawing, results, values, width=1)
        drawings.append(drawing)
        last = values.sort_values("step").groupby("trial").value.last()
        ends.append(
            f"{_CURVE_TITLES[metric]} {number(last.median(), 2)} ({number(last.min(), 2)} to "
            f"{number(last.max(), 2)})"
        )
    if not drawings:
        return None
    text = f"At the last step, median (range): {', '.join(ends)}.{_thinning_note(results.table)}"
    return Picture("health", "Training health", text, tuple(drawings))


def failures(results: Results) -> Picture | None:
    """List the reasons for failed trials, most frequent first; None if no trial failed."""
    failed = results.table[results.table.state == "FAIL"]
    if failed.empty:
        return None
    reasons = failed.reason.replace("", "no reason recorded").value_counts()
    most = "; ".join(f"{count} × {str(reason)[:120]}" for reason, count in reasons.head(4).items())
    fraction = len(failed) / len(results.table)
    text = f"{len(failed)} of {len(results.table)} trials failed ({fraction:.0%}): {most}."
    return Picture("failures", "Failures", text)


def trial_lines(
    drawing: Any, results: Results, values: pd.DataFrame, width: float, place: str = "step"
) -> None:
    """Add one line per trial, for at most ``MAX_LINES`` trials of ``values`` (trial, step, value);
    dotted if the trial did not complete.
    """
    shades = colors(results.table.rule)
    by_trial = dict(list(values.sort_values("step").groupby("trial")))
    for row in rows(thinned(results.table, results.objective.sign)):
        curve = by_trial.get(row.trial)
        if curve is None:
            continue
        unstopped = row.state in ("COMPLETE", "RUNNING")
        add_points(
            drawing,
            curve.step,
            curve.value,
            hover(row),  # one label per line: a label per point would make up most of a large page
            hovertemplate=f"%{{hovertext}}<br>{place} %{{x}}: %{{y:.3~g}}<extra></extra>",
            mode="lines" if len(curve) > 1 else "markers",
            name=row.rule,
            line={
                "color": shades[row.rule],
                "width": width,
                "dash": "solid" if unstopped else "dot",
            },
            opacity=0.8 if len(results.table) <= _MANY_TRIALS else 0.25,
        )


def thinned(trials: pd.DataFrame, sign: int) -> pd.DataFrame:
    """Return at most ``MAX_LINES`` trials: the best, then every n-th by score.

    Trials without a score rank last and are thinned in the same way. ``sign`` is -1 if smaller is
    better.
    """
    if len(trials) <= MAX_LINES:
        return trials
    ranked = trials.sort_values("score", ascending=sign < 0, na_position="last")
    return ranked.iloc[:: math.ceil(len(trials) / MAX_LINES)]


def _thinning_note(trials: pd.DataFrame) -> str:
    drawn = len(thinned(trials, 1))
    if drawn == len(trials):
        return ""
    return (
        f" {drawn} of {len(trials)} trials are shown, spread evenly from the best score to the "
        "worst."
    )
