"""The picture of rounds of fresh seeds: the gain of every finalist after each look."""

import html
import math
from collections.abc import Mapping

import plotly.graph_objects as go

from dashboards.labels import colours
from dashboards.pictures.theme import MUTED, Picture, add_points, figure, spread
from dashboards.results import Results, Rounds
from dashboards.words import bounds, device_time, standing


def decision(results: Results) -> Picture | None:
    """Gains with their bounds; None where no rounds were run."""
    fresh = results.fresh
    if fresh is None or fresh.rounds is None:
        return None
    found, labels = fresh.rounds, _labels(fresh, fresh.rounds)
    shades = colours(labels.values())
    text = (
        f"{decided(fresh)} A finalist is better where its bar is above 0, not better where it is below the "
        f"worthwhile {found.worthwhile:g}."
    )
    drawing = _gains(results, found, labels, shades)
    return Picture("decision", "Finalists in rounds of fresh seeds", text, (drawing,))


def decided(fresh: Results) -> str:
    """The decision on every finalist and what it took; empty where the finalists do not run in rounds."""
    found = fresh.rounds
    if found is None:
        return ""
    labels = _labels(fresh, found)
    said = [standing(labels[stands.finalist], stands, found.worthwhile) for stands in found.last]
    if not said:
        return f"On fresh seeds nothing is decided yet: the first look is after {found.planned[0]} of each."
    return (
        f"On fresh seeds, of at most {found.planned[-1]} planned: {'; '.join(said)}. That took {fresh.ended} trials "
        f"of at most {(len(labels) + 1) * found.planned[-1]}, {device_time(sum(fresh.cost), fresh.device)}."
    )


def _labels(fresh: Results, found: Rounds) -> Mapping[str, str]:
    finalists = dict.fromkeys(stands.finalist for stands in found.standings)
    return {name: fresh.labels.get(name, f"#{name}") for name in finalists}


def _gains(results: Results, found: Rounds, labels: Mapping[str, str], shades: Mapping[str, str]) -> go.Figure:
    """Gain against seeds, from the bound below which it is not to the one above."""
    drawing = figure("fresh seeds of each", f"gain of {results.objective.metric}", height=400)
    drawing.add_hline(y=0, line={"color": MUTED, "width": 1})
    drawing.add_hline(y=found.worthwhile, line={"color": MUTED, "width": 1, "dash": "dot"})
    for name, label in labels.items():
        own = [stands for stands in found.standings if stands.finalist == name]
        gains = [stands.gain for stands in own]
        low = [math.nan if stands.low is None else stands.low for stands in own]
        high = [math.nan if stands.high is None else stands.high for stands in own]
        add_points(
            drawing,
            [stands.seeds for stands in own],
            gains,
            [html.escape(f"{label}: {bounds(stands)}, {stands.decision}") for stands in own],
            mode="lines+markers",
            name=label,
            line={"color": shades[label], "width": 2},
            marker={"size": 9},
            error_y=spread(gains, low, high, thickness=1.5),
        )
    drawing.update_xaxes(range=[0, found.planned[-1] + 1])
    return drawing
