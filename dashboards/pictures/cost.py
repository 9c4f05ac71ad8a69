"""The picture of cost: how long trials ran, and what a score cost."""

import pandas as pd

from dashboards.labels import colours
from dashboards.pictures.theme import Picture, figure, hover, number, rows
from dashboards.sweep import Sweep
from trainer.evaluation.estimators import rank_correlation


def cost(sweep: Sweep) -> Picture:
    """Score against the device hours of each trial."""
    title, trials = "Time and cost", sweep.trials
    if trials.empty:
        return Picture("cost", title, "No trial has started yet.")
    begun = (trials.start - trials.start.min()).dt.total_seconds() / 60
    now = (pd.Timestamp.now(tz="UTC") - trials.start).dt.total_seconds()
    # A trial without an end runs to now while the sweep runs; afterwards nothing says when it stopped.
    minutes = trials.duration_s.fillna(now if sweep.status == "RUNNING" else 0) / 60
    span, work = float((begun + minutes).max()), float(minutes.sum())
    text = (
        f"{len(trials)} trials in {number(span)} minutes, {number(work / span if span else 0, 2)} at a time on "
        f"average; a trial takes {number(minutes.median())} minutes in the median."
    )
    hours, complete = sweep.device_hours(), sweep.complete()
    complete = complete[hours[complete.index].notna()]
    if complete.empty:
        return Picture("cost", title, text)
    unit, factor = ("hours", 1.0) if hours.max() >= 1 else ("minutes", 60.0)
    drawing = figure(f"{sweep.device}-{unit} of the trial", sweep.objective.metric)
    shades = colours(sweep.trials.variant)
    for variant, own in complete.groupby("variant"):
        drawing.add_scatter(
            x=hours[own.index] * factor,
            y=own.score,
            mode="markers",
            name=variant,
            marker={"color": shades[str(variant)], "size": 9},
            hovertext=[hover(row, f"score {number(row.score)}") for row in rows(own)],
            hoverinfo="text",
        )
    used = hours.dropna()
    lost = float(used[~used.index.isin(complete.index)].sum() / used.sum()) if used.sum() else 0.0
    text += f" All of it cost {number(float(used.sum()) * factor)} {sweep.device}-{unit}"
    text += f", {lost:.0%} of that in trials that did not run to their end"
    rho = rank_correlation(list(hours[complete.index]), list(complete.score))
    if len(complete) >= 3 and rho == rho:
        text += f"; rank correlation of score with cost {rho:+.2f}"
    return Picture("cost", title, f"{text}.", (drawing,))
