"""Pictures of whole trials: learning curves, training health, all settings at once, failures."""

import html
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from dashboards.labels import colours
from dashboards.pictures.parameters import is_log, plane, scale
from dashboards.pictures.theme import FAILED, MUTED, Picture, figure, hover, number, rows, translucent
from dashboards.queries import CURVES, Sweep, column_of, unit_of
from dashboards.thinning import thinned, thinning_note
from trainer.config.variants import short_names, shown

MANY_TRIALS = 20  # above this, lines grow faint to show where they are dense
MAX_AXES = 8  # of the parallel coordinates
MEAN_OF = 3  # trials of an update rule that get a line of their mean
_CURVE_TITLES = {
    "policy/kl": "KL to the reference",
    "policy/entropy": "Entropy",
    "policy/clip_fraction": "Clip fraction",
    "rollout/completion_length": "Completion length",
    "optim/grad_norm": "Gradient norm",
}


def learning_curves(sweep: Sweep) -> Picture:
    """The objective metric over training steps, one line per trial."""
    metric, title = sweep.objective.metric, "Learning curves"
    values = sweep.histories[sweep.histories.metric == metric]
    if values.empty:
        return Picture("curves", title, "No evaluation has been logged yet.")
    drawing = figure("training step", metric, height=420, legend=False)
    trial_lines(drawing, sweep, values, width=1.6)
    averaged = mean_lines(drawing, sweep, values)
    ends = values.sort_values("step").groupby("trial").value.agg(["first", "last"])
    change = ends["last"] - ends["first"]
    rising = change > 0 if sweep.objective.mode == "max" else change < 0
    text = (
        f"From first to last evaluation {int(rising.sum())} of {len(ends)} trials improve, by "
        f"{change.median():+.3f} in the median ({change.min():+.3f} to {change.max():+.3f}); "
        f"dotted lines are trials that failed or were stopped{_mean_note(averaged)}.{thinning_note(sweep.trials)}"
    )
    return Picture("curves", title, text, (drawing,), trial_legend(sweep, values))


def training_health(sweep: Sweep) -> Picture:
    """KL, entropy, clip fraction, completion length and gradient norm over training steps."""
    title, drawings, ends, averaged = "Training health", [], [], False
    for metric in CURVES:
        values = sweep.histories[sweep.histories.metric == metric]
        if values.empty:
            continue
        unit = unit_of(metric)
        label = _CURVE_TITLES[metric] + (f" [{unit}]" if unit else "")
        drawing = figure("training step", label, height=280, legend=False)
        trial_lines(drawing, sweep, values, width=1)
        averaged |= mean_lines(drawing, sweep, values)
        drawings.append(drawing)
        last = values.sort_values("step").groupby("trial").value.last()
        ends.append(
            f"{_CURVE_TITLES[metric]} {number(last.median(), 2)} "
            f"({number(last.min(), 2)} to {number(last.max(), 2)})"
        )
    if not drawings:
        return Picture("health", title, "No training step has been logged yet.")
    found = f"At the last step, median (range): {', '.join(ends)}"
    text = f"{found}{_mean_note(averaged)}.{thinning_note(sweep.trials)}"
    return Picture("health", title, text, tuple(drawings), trial_legend(sweep, sweep.histories))


def parallel_coordinates(sweep: Sweep) -> Picture:
    """Every trial as one line over all searched parameters and the score; failed trials in red."""
    title, trials = "All settings at once", sweep.trials
    names = list(sweep.varied)[:MAX_AXES]
    called = short_names(names)
    if not names:
        return Picture("parallel", title, "No parameter varies between the trials.")
    axes = [_axis(trials[name], shown, is_log(sweep, name)) for name in names]
    scored = trials.score.notna()
    if scored.any():
        axes.append(_axis(trials.score, number))
        names.append("score")
    drawing = figure(height=430, legend=False)
    ranks = trials.score.rank(pct=True, ascending=sweep.objective.mode == "max")
    for row in rows(thinned(trials, sweep.objective.mode)):
        heights = [axis[0].loc[row.Index] for axis in axes]
        failed = row.state == "FAIL"
        if failed and names[-1] == "score":
            heights[-1] = -0.12  # below the scale: a failed trial has no score
        shade = FAILED if failed else _shade(ranks.loc[row.Index])
        drawing.add_scatter(
            x=list(range(len(heights))),
            y=heights,
            mode="lines+markers",
            line={"color": shade, "width": 1.5, "dash": "dot" if failed else "solid"},
            marker={"size": 5},
            opacity=0.85,
            hovertext=hover(row, f"score {number(row.score)}" if not failed else row.reason or "failed"),
            hoverinfo="text",
        )
    for place, (_, ticks) in enumerate(axes):
        drawing.add_vline(x=place, line={"color": MUTED, "width": 1}, layer="below")
        for height, text in ticks:
            drawing.add_annotation(
                x=place,
                y=height,
                text=html.escape(text),
                showarrow=False,
                xanchor="left" if place < len(axes) - 1 else "right",
                xshift=4 if place < len(axes) - 1 else -4,
                font={"size": 11},
            )
    short = [html.escape(called.get(name, name)) for name in names]
    drawing.update_xaxes(tickmode="array", tickvals=list(range(len(names))), ticktext=short, showgrid=False)
    drawing.update_xaxes(range=[-0.15, len(names) - 0.85])
    drawing.update_yaxes(visible=False, range=[-0.2, 1.08])
    failures = int((trials.state == "FAIL").sum())
    text = (
        f"{len(trials)} trials over {len(called)} searched parameters; blue is a low score and orange a "
        f"high one; {failures} failed (red, dotted, below the score's scale).{thinning_note(trials)}"
    )
    return Picture("parallel", title, text, (drawing,), min_width=120 * len(names))


def failures(sweep: Sweep) -> Picture:
    """Why trials failed, and where over two parameters."""
    title, trials, axes = "Failures", sweep.trials, plane(sweep)
    failed = trials[trials.state == "FAIL"]
    if failed.empty:
        return Picture("failures", title, f"None of {len(trials)} trials failed.")
    reasons = failed.reason.replace("", "no reason recorded").value_counts()
    most = "; ".join(f"{count} × {str(reason)[:120]}" for reason, count in reasons.head(4).items())
    text = f"{len(failed)} of {len(trials)} trials failed ({len(failed) / len(trials):.0%}): {most}."
    if axes is None:
        return Picture("failures", title, text)
    across, up = axes
    drawing = figure(column_of(across), column_of(up))
    drawing.update_xaxes(scale(sweep, across))
    drawing.update_yaxes(scale(sweep, up))
    for name, own, marker in (
        ("not failed", trials[trials.state != "FAIL"], {"color": MUTED, "size": 8}),
        ("failed", failed, {"color": FAILED, "size": 13, "symbol": "x"}),
    ):
        drawing.add_scatter(
            x=own[column_of(across)],
            y=own[column_of(up)],
            mode="markers",
            name=name,
            marker=marker,
            hovertext=[hover(row, row.state.lower(), row.reason) for row in rows(own)],
            hoverinfo="text",
        )
    return Picture("failures", title, text, (drawing,))


def trial_lines(drawing: Any, sweep: Sweep, values: pd.DataFrame, width: float) -> None:
    """Add a line per trial of ``values`` (trial, step, value); dotted where the trial did not run to its end.

    Of more than ``MAX_LINES`` trials a part is drawn.
    """
    shades = colours(sweep.trials.variant)
    by_trial = dict(list(values.sort_values("step").groupby("trial")))
    for row in rows(thinned(sweep.trials, sweep.objective.mode)):
        own = by_trial.get(row.trial)
        if own is None:
            continue
        whole = row.state in ("COMPLETE", "RUNNING")
        drawing.add_scatter(
            x=own.step,
            y=own.value,
            mode="lines" if len(own) > 1 else "markers",
            name=row.variant,
            line={"color": shades[row.variant], "width": width, "dash": "solid" if whole else "dot"},
            opacity=0.8 if len(sweep.trials) <= MANY_TRIALS else 0.25,
            hovertext=[
                hover(row, f"step {step}: {number(value)}")
                for step, value in zip(own.step, own.value, strict=True)
            ],
            hoverinfo="text",
        )


def mean_lines(drawing: Any, sweep: Sweep, values: pd.DataFrame) -> bool:
    """Add a thick line for each update rule, the mean of its trials that ran to their end; whether there is one.

    At the steps that all of them have, and for rules with ``MEAN_OF`` trials or more.
    """
    shades, drawn = colours(sweep.trials.variant), False
    complete = sweep.trials[sweep.trials.state == "COMPLETE"]
    for variant, trials in complete.groupby("variant").trial:
        table = values[values.trial.isin(trials)].pivot_table(index="step", columns="trial", values="value")
        mean = table.dropna().mean(axis="columns")
        if table.shape[1] < MEAN_OF or len(mean) < 2:
            continue
        drawn = True
        of = f"{html.escape(str(variant))}, mean of {table.shape[1]} trials"
        drawing.add_scatter(
            x=mean.index,
            y=mean,
            mode="lines",
            name=variant,
            line={"color": shades[str(variant)], "width": 4},
            hovertext=[f"{of}<br>step {step}: {number(value)}" for step, value in mean.items()],
            hoverinfo="text",
        )
    return drawn


def _mean_note(averaged: bool) -> str:
    return "; a thick line is the mean of an update rule's trials" if averaged else ""


def trial_legend(sweep: Sweep, values: pd.DataFrame) -> dict[str, str]:
    """The colours of the update rules that have a line."""
    present = set(sweep.trials[sweep.trials.trial.isin(values.trial)].variant)
    return {name: shade for name, shade in colours(sweep.trials.variant).items() if name in present}


def _axis(
    column: "pd.Series[Any]", show: Callable[[float], str], log: bool = False
) -> tuple["pd.Series[Any]", list[tuple[float, str]]]:
    """Positions in 0..1 along an axis, None where the value is missing, and its tick labels."""
    if pd.api.types.is_numeric_dtype(column):
        low, high = float(column.min()), float(column.max())
        places = np.log10(column.where(column > 0)) if log else column
        bottom = float(places.min())
        span = float(places.max()) - bottom or 1.0
        ticks = [(0.0, show(low)), (1.0, show(high))] if high > low else [(0.0, show(low))]
        return (places - bottom) / span, ticks
    words = column.dropna().map(str)
    values = sorted(set(words))
    place = {value: index / max(1, len(values) - 1) for index, value in enumerate(values)}
    return words.map(place).reindex(column.index), [(place[value], value) for value in values]


def _shade(rank: float) -> str:
    """Blue for the lowest rank, orange for the highest, grey without a score."""
    if rank != rank:
        return translucent(MUTED, 0.6)
    low, high = (61, 133, 198), (224, 123, 0)
    mixed = [round(a + (b - a) * rank) for a, b in zip(low, high, strict=True)]
    return f"rgb({mixed[0]},{mixed[1]},{mixed[2]})"
