"""Pictures of scores over what was searched, one for every parameter."""

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dashboards.labels import colors
from dashboards.pictures.theme import Picture, add_points, figure, hover, rows, word_axis
from dashboards.results import Results
from dashboards.words import number
from trainer.config.variants import short_names, shown


def scores_against(results: Results) -> list[Picture | None]:
    """Score against every parameter that has more than one value."""
    return [score_against(results, name) for name in results.varied]


def score_against(results: Results, parameter: str) -> Picture | None:
    """Score against one parameter, on the scale it was searched on; colors are update rules."""
    trials = results.comparable
    if trials.empty:
        return None
    name = short_names(results.varied)[parameter]
    title = f"Score against {name}"
    drawing = figure(parameter, results.objective.metric)
    drawing.update_xaxes(scale(results, parameter))
    if not pd.api.types.is_numeric_dtype(results.table[parameter]):
        word_axis(drawing, sorted(results.table[parameter].dropna().astype(str).unique()))
    for rule, shade in colors(results.table.rule).items():
        _seed_dots(drawing, results.table[results.table.rule == rule], parameter, rule, shade)
    best = trials[trials.configuration == results.best_of(trials)]
    place = f"{name} {shown(best[parameter].iloc[0])} ({best.label.iloc[0]})"
    text = f"The best mean score, {number(best.score.mean())}, was at {place}."
    return Picture(parameter, title, text, (drawing,))


def scale(results: Results, parameter: str) -> dict[str, Any]:
    """Return the axis of a parameter: logarithmic where it was searched so, with a few round
    numbers written out.
    """
    values = results.table[parameter]
    if not results.kinds.get(parameter, "").startswith("log") or not (values > 0).any():
        return {}
    decades = range(
        math.floor(math.log10(values[values > 0].min())), math.ceil(math.log10(values.max())) + 1
    )
    ticks = [
        float(f"{first}e{decade}")
        for decade in decades
        for first in ((1, 3) if len(decades) < 4 else (1,))
    ]
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [shown(tick) for tick in ticks],
    }


def _seed_dots(
    drawing: go.Figure, trials: pd.DataFrame, column: str, name: str, shade: str
) -> None:
    for state, symbol in (("COMPLETE", "circle"), ("PRUNED", "circle-open")):
        of_state = trials[(trials.state == state) & trials.score.notna()]
        if of_state.empty:
            continue
        notes = [
            hover(row, f"score {number(row.score)}", row.state.lower()) for row in rows(of_state)
        ]
        dots = {"color": shade, "size": 9, "symbol": symbol}
        add_points(drawing, of_state[column], of_state.score, notes, name=name, marker=dots)
