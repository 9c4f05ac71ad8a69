"""Pictures of time: when each trial ran, and what its score cost."""

import pandas as pd
import plotly.graph_objects as go

from dashboards.labels import colours
from dashboards.pictures.theme import FAILED, MUTED, Picture, figure, hover, number, rows
from dashboards.queries import Sweep
from trainer.evaluation.estimators import rank_correlation

STATE_COLOURS = {
    "COMPLETE": "#2a9d6f",
    "PRUNED": "#b59b00",
    "FAIL": FAILED,
    "RUNNING": "#3d85c6",
    "KILLED": MUTED,
}
ROW_HEIGHT = 20  # [px] of a trial in the timeline
MAX_HEIGHT = 900


def timeline(sweep: Sweep) -> Picture:
    """When each trial ran, and its score against its cost."""
    title, trials = "Timeline and cost", sweep.trials
    if trials.empty:
        return Picture("timeline", title, "No trial has started yet.")
    begun = (trials.start - trials.start.min()).dt.total_seconds() / 60
    now = (pd.Timestamp.now(tz="UTC") - trials.start).dt.total_seconds()
    # A trial without an end runs to now while the sweep runs; afterwards nothing says when it stopped.
    minutes = trials.duration_s.fillna(now if sweep.status == "RUNNING" else 0) / 60
    drawing = figure("minutes since the start", height=min(MAX_HEIGHT, 110 + ROW_HEIGHT * len(trials)))
    for state, shade in STATE_COLOURS.items():
        own = trials[trials.state == state]
        if own.empty:
            continue
        drawing.add_bar(
            x=minutes[own.index],
            base=begun[own.index],
            y=own.trial,
            orientation="h",
            name=state.lower(),
            marker={"color": shade},
            hovertext=[hover(row, f"{number(minutes[row.Index])} minutes", row.reason) for row in rows(own)],
            hoverinfo="text",
        )
    drawing.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=list(trials.trial))
    drawing.update_yaxes(tickfont={"size": 11}, showgrid=False, nticks=40)
    span, work = float((begun + minutes).max()), float(minutes.sum())
    text = (
        f"{len(trials)} trials in {number(span)} minutes, {number(work / span if span else 0, 2)} at a time on "
        f"average; a trial takes {number(minutes.median())} minutes in the median."
    )
    scored = _cost_against_score(sweep)
    if scored is None:
        return Picture("timeline", title, text, (drawing,))
    cost, costs = scored
    shades = colours(trials.variant)
    legend = {name: shades[name] for name in sorted(set(sweep.complete().variant))}
    return Picture("timeline", title, text + costs, (drawing, cost), legend)


def _cost_against_score(sweep: Sweep) -> tuple[go.Figure, str] | None:
    hours = sweep.device_hours()
    complete = sweep.complete()
    complete = complete[hours[complete.index].notna()]
    if complete.empty:
        return None
    unit, factor = ("hours", 1.0) if hours.max() >= 1 else ("minutes", 60.0)
    drawing = figure(f"{sweep.device}-{unit} of the trial", sweep.objective.metric, legend=False)
    for variant, shade in colours(sweep.trials.variant).items():
        own = complete[complete.variant == variant]
        if own.empty:
            continue
        drawing.add_scatter(
            x=hours[own.index] * factor,
            y=own.score,
            mode="markers",
            name=variant,
            marker={"color": shade, "size": 9},
            hovertext=[hover(row, f"score {number(row.score)}") for row in rows(own)],
            hoverinfo="text",
        )
    used = hours.dropna()
    lost = float(used[~used.index.isin(complete.index)].sum() / used.sum()) if used.sum() else 0.0
    text = f" All of it cost {number(float(used.sum()) * factor)} {sweep.device}-{unit}"
    text += f", {lost:.0%} of that in trials that did not run to their end"
    rho = rank_correlation(list(hours[complete.index]), list(complete.score))
    if len(complete) >= 3 and rho == rho:
        text += f"; rank correlation of score with cost {rho:+.2f}"
    return drawing, text + "."
