"""Plot of a sweep's two objectives: every configuration, and the Pareto front (the configurations
that no other one dominates).
"""

import html
from dataclasses import dataclass, replace

import plotly.graph_objects as go

from dashboards.labels import PALETTE
from dashboards.pictures.theme import MUTED, Picture, add_points, figure
from dashboards.results import Results
from dashboards.statistics.front import Estimate, estimate, front
from dashboards.statistics.levels import coverage
from dashboards.trial import sign_of
from dashboards.words import number, percent_interval, to_bounds
from loptune.errors import listed

_MOST_NAMED = 8
_FRONT_COLOR = PALETTE[0]


@dataclass(frozen=True)
class FrontPoint:
    """A configuration with the means of both objectives over its seeds."""

    configuration: str
    label: str
    seeds: int
    score: Estimate
    second: Estimate
    on_front: bool


def front_points(results: Results) -> list[FrontPoint]:
    """Return the complete configurations with both objectives, the front first; empty if the sweep
    records no second objective.
    """
    objective = results.objective
    if objective.second is None:
        return []
    table = results.comparable.dropna(subset=["second"])
    complete = set(results.complete_means.index)
    points: dict[str, FrontPoint] = {}
    for configuration, trials in table.groupby("configuration", sort=False):
        if configuration in complete:
            name = str(configuration)
            points[name] = FrontPoint(
                configuration=name,
                label=results.labels[name],
                seeds=len(trials),
                score=estimate(list(trials.score), coverage()),
                second=estimate(list(trials.second), coverage()),
                on_front=False,
            )
    means = {name: (point.score.mean, point.second.mean) for name, point in points.items()}
    members = front(means, (objective.sign, sign_of(objective.second_mode)))
    others = [point for name, point in points.items() if name not in members]
    return [*(replace(points[name], on_front=True) for name in members), *others]


def two_objectives(results: Results) -> Picture | None:
    """Plot the score against the second objective, in the search and on fresh seeds; None if the
    sweep records no second objective, or no trial has one yet.
    """
    objective = results.objective
    parts = {"on the seeds of the search": front_points(results)}
    if results.fresh is not None:
        parts["on fresh seeds"] = front_points(results.fresh)
    drawn = {where: points for where, points in parts.items() if points}
    if not drawn or objective.second is None:
        return None
    figures = tuple(_drawing(results, points, where) for where, points in drawn.items())
    where, points = list(drawn.items())[-1]
    members = [point.label for point in points if point.on_front]
    text = (
        f"These form the front {where}, because no other configuration beats them in both "
        "objectives: "
        f"{listed(members, _MOST_NAMED, '; ')}. Bars are the {percent_interval(coverage())}s of a "
        "configuration's own means over its seeds. A configuration whose bars reach the line may "
        f"belong to the front. The verdict is on {objective.metric} alone."
    )
    title = f"{objective.metric} against {objective.second}"
    return Picture("front", title, text, figures, _table(results, points))


def _drawing(results: Results, points: list[FrontPoint], where: str) -> go.Figure:
    objective = results.objective
    drawing = figure(f"{objective.second}, {where}", objective.metric)
    members = sorted(
        (point for point in points if point.on_front), key=lambda point: point.second.mean
    )
    add_points(
        drawing,
        [point.second.mean for point in members],
        [point.score.mean for point in members],
        None,
        mode="lines",
        line={"color": _FRONT_COLOR, "width": 2, "shape": "hv"},
    )
    for name, shade, shown in (
        ("on the front", _FRONT_COLOR, members),
        ("other", MUTED, [point for point in points if not point.on_front]),
    ):
        notes = [html.escape(_note(results, point)) for point in shown]
        add_points(
            drawing,
            [point.second.mean for point in shown],
            [point.score.mean for point in shown],
            notes,
            name=name,
            marker={"color": shade, "size": 10},
            error_x=_bars([point.second for point in shown], shade),
            error_y=_bars([point.score for point in shown], shade),
        )
    return drawing


def _bars(estimates: list[Estimate], shade: str) -> dict[str, object]:
    """Return the error bars of means; their length is 0 with one seed."""
    halves = []
    for each in estimates:
        halves.append(0.0 if each.interval is None else each.interval[1] - each.mean)
    return {"type": "data", "array": halves, "color": shade, "thickness": 1.2, "width": 3}


def _note(results: Results, point: FrontPoint) -> str:
    objective = results.objective
    return (
        f"{point.label}: {objective.metric} {_text(point.score)}, {objective.second} "
        f"{_text(point.second)}, {point.seeds} seeds"
    )


def _text(value: Estimate) -> str:
    if value.interval is None:
        return number(value.mean)
    return f"{number(value.mean)} ({to_bounds(value.interval)})"


def _table(results: Results, points: list[FrontPoint]) -> tuple[list[str], list[list[object]]]:
    """Return headings and one row per configuration."""
    objective = results.objective
    headings = ["configuration", "seeds", objective.metric, str(objective.second), "front"]
    rows: list[list[object]] = []
    for point in points:
        member = "yes" if point.on_front else "no"
        rows.append([point.label, point.seeds, _text(point.score), _text(point.second), member])
    return headings, rows
