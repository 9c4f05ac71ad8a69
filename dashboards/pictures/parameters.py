"""Plots of the score against each searched parameter."""

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dashboards.labels import colors
from dashboards.pictures.theme import Picture, add_points, category_axis, figure, hover, rows
from dashboards.results import Results
from dashboards.words import number
from loptune.parameter_names import short_names, shown


def scores_against(results: Results) -> list[Picture | None]:
    """Plot the score against each parameter with more than one value; see `score_against`."""
    return [score_against(results, name) for name in results.varied]


def score_against(results: Results, parameter: str) -> Picture | None:
    """Plot the score against one parameter on its search scale, with a color per update rule; None
    without comparable trials.
    """
    trials = results.comparable
    if trials.empty:
        return None
    name = short_names(results.varied)[parameter]
    title = f"Score against {name}"
    drawing = figure(parameter, results.objective.metric)
    drawing.update_xaxes(scale(results, parameter))
    table = results.table
    if not pd.api.types.is_numeric_dtype(table[parameter]):
        words = table[parameter].map(shown, na_action="ignore")
        table = table.assign(**{parameter: words})
        category_axis(drawing, sorted(words.dropna().unique()))
    # a running trial has no final score yet
    scored = table[table.state.isin(["COMPLETE", "PRUNED"]) & table.score.notna()]
    compared = scored.trial.isin(trials.trial)
    for rule, shade in colors(table.rule).items():
        for drawn, symbol in ((compared, "circle"), (~compared, "circle-open")):
            of_rule = scored[drawn & (scored.rule == rule)]
            _seed_dots(drawing, of_rule, parameter, rule, {"color": shade, "symbol": symbol})
    best = trials[trials.configuration == results.best_of(trials)]
    place = f"{name} {shown(best[parameter].iloc[0])} ({best.label.iloc[0]})"
    text = f"The best mean score, {number(best.score.mean())}, was at {place}."
    if not compared.all():
        text += (
            " Open dots are not compared, because the scheduler stopped a seed of their "
            "configuration."
        )
    return Picture(parameter, title, text, (drawing,))


def scale(results: Results, parameter: str) -> dict[str, Any]:
    """Return the axis settings of a parameter: logarithmic with a few round ticks if it was
    searched on a log scale, or if all its values are positive and span a decade.
    """
    values = results.table[parameter].dropna()
    if not pd.api.types.is_numeric_dtype(values) or values.dtype == bool:
        return {}
    searched_on_log = results.kinds.get(parameter, "").startswith("log") and (values > 0).any()
    if not searched_on_log and not 0 < 10 * values.min() <= values.max():
        return {}
    decades = range(
        math.floor(math.log10(values[values > 0].min())), math.ceil(math.log10(values.max())) + 1
    )
    digits = (1, 3) if len(decades) < 4 else (1,)
    ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [shown(tick) for tick in ticks],
    }


def _seed_dots(
    drawing: go.Figure, trials: pd.DataFrame, column: str, name: str, dots: dict[str, Any]
) -> None:
    if trials.empty:
        return
    notes = [hover(row, f"score {number(row.score)}", row.state.lower()) for row in rows(trials)]
    add_points(drawing, trials[column], trials.score, notes, name=name, marker={"size": 9, **dots})
