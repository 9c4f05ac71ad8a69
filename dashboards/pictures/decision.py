"""The picture of rounds of fresh seeds: the gain of every finalist after each look."""

import html
from collections.abc import Mapping

import plotly.graph_objects as go

from dashboards.labels import colours
from dashboards.pictures.theme import MUTED, Picture, add_points, figure, rows, spread
from dashboards.sweep import Rounds, Sweep
from dashboards.words import bounds, device_time, standing


def decision(sweep: Sweep) -> Picture | None:
    """Gains with their bounds; None where no rounds were run."""
    fresh = sweep.confirmation
    if fresh is None or fresh.rounds is None:
        return None
    found, labels = fresh.rounds, _labels(fresh, fresh.rounds)
    shades = colours(labels.values())
    text = (
        f"{decided(fresh)} A finalist is better where its bar is above 0, not better where it is below the "
        f"worthwhile {found.worthwhile:g}."
    )
    drawing = _gains(sweep, found, labels, shades)
    return Picture("decision", "Finalists in rounds of fresh seeds", text, (drawing,))


def decided(fresh: Sweep) -> str:
    """The decision on every finalist and what it took; empty where the finalists do not run in rounds."""
    found = fresh.rounds
    if found is None:
        return ""
    labels = _labels(fresh, found)
    said = [
        standing(labels[row.configuration], row, found.worthwhile)
        for row in rows(found.standings.groupby("configuration", sort=False).tail(1))
    ]
    if not said:
        return f"On fresh seeds nothing is decided yet: the first look is after {found.looks[0]} of each."
    return (
        f"On fresh seeds, of at most {found.looks[-1]} planned: {'; '.join(said)}. That took {fresh.ended} trials "
        f"of at most {(len(labels) + 1) * found.looks[-1]}, {device_time(found.device_hours, fresh.device)}."
    )


def _labels(fresh: Sweep, found: Rounds) -> Mapping[str, str]:
    known = {row.configuration: row.label for row in rows(fresh.trials)}
    return {name: known.get(name, f"#{name}") for name in found.standings.configuration.unique()}


def _gains(sweep: Sweep, found: Rounds, labels: Mapping[str, str], shades: Mapping[str, str]) -> go.Figure:
    """Gain against seeds, from the bound below which it is not to the one above."""
    drawing = figure("fresh seeds of each", f"gain of {sweep.objective.metric}", height=400)
    drawing.add_hline(y=0, line={"color": MUTED, "width": 1})
    drawing.add_hline(y=found.worthwhile, line={"color": MUTED, "width": 1, "dash": "dot"})
    for name, label in labels.items():
        own = found.standings[found.standings.configuration == name]
        notes = [html.escape(f"{label}: {bounds(row)}, {row.decision}") for row in rows(own)]
        add_points(
            drawing,
            own.seeds,
            own.gain,
            notes,
            mode="lines+markers",
            name=label,
            line={"color": shades[label], "width": 2},
            marker={"size": 9},
            error_y=spread(own.gain, own.low, own.high, thickness=1.5),
        )
    drawing.update_xaxes(range=[0, found.looks[-1] + 1])
    return drawing
