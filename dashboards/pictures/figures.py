"""Pictures of scores: against a parameter, between update rules, over time. Pure functions of a sweep."""

import html
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboards.pictures.judged import configuration_label
from dashboards.pictures.theme import (
    FAILED,
    MUTED,
    Picture,
    colours,
    figure,
    hover,
    label_rows,
    number,
    rows,
    setting,
    short_name,
    signed,
    translucent,
)
from dashboards.queries import Sweep
from dashboards.statistics.estimates import (
    LEVEL,
    MIN_CONFIGURATIONS,
    bootstrap,
    importances,
    interquartile_mean,
    local_mean,
    probability_of_improvement,
)
from trainer.evaluation.estimators import rank_correlation

MIN_BAND_POINTS = 5  # configurations needed for a local mean
MAX_NUMBERED = 5  # ranks written beside their points
MAX_PAIRED_ROWS = 20
ROOM = 0.1  # of a panel's width, taken by the text of a rank


def score_against_alpha(sweep: Sweep) -> Picture:
    """Score against AR's alpha, per algorithm."""
    return _score_against(sweep, "alpha", "AR strength alpha")


def score_against_eta(sweep: Sweep) -> Picture:
    """Score against Lopti's eta, per algorithm."""
    return _score_against(sweep, "eta", "Lopti threshold eta")


def _score_against(sweep: Sweep, column: str, label: str) -> Picture:
    title = f"Score against {column}"
    configurations, shades = sweep.configurations(), colours(sweep.trials.algorithm)
    drawing, found = figure(label, sweep.objective.metric), []
    for algorithm, shade in shades.items():
        means = configurations[configurations.algorithm == algorithm]
        if means[column].nunique() >= MIN_BAND_POINTS:
            grid, middle, low, high = local_mean(list(means[column]), list(means["mean"]))
            _band(drawing, grid, low, high, shade)
            line = {"color": shade, "width": 2}
            drawing.add_scatter(x=grid, y=middle, mode="lines", line=line, showlegend=False, hoverinfo="skip")
        trials = sweep.trials[sweep.trials.algorithm == algorithm]
        _seed_dots(drawing, trials, column, algorithm, shade)
        rho = rank_correlation(list(means[column]), list(means["mean"]))
        if len(means) >= 3 and rho == rho:
            found.append(f"{algorithm} {rho:+.2f} over {len(means)} configurations")
    if configurations.empty:
        return Picture(column, title, "No trial has a score yet.")
    best = configurations.loc[_best_index(sweep, configurations["mean"])]
    text = (
        f"The best mean score, {number(best['mean'])}, was at {column} {setting(best[column])} ({best.algorithm})"
    )
    text += f"; rank correlation of score with {column}: {', '.join(found)}." if found else "."
    if any(trace.fill == "tonexty" for trace in drawing.data):
        text += f" Line and band: local mean over configurations with its {LEVEL:.0%} bootstrap interval."
    return Picture(column, title, text, (drawing,))


def alpha_eta_ranks(sweep: Sweep) -> Picture:
    """Rank of every configuration over alpha and eta, a panel per algorithm: points only."""
    title, configurations = "Rank over alpha and eta", sweep.configurations()
    if configurations.empty:
        return Picture("ranks", title, "No trial has a score yet.")
    ranks = configurations["mean"].rank(ascending=sweep.objective.mode == "min", method="min").astype(int)
    numbered = max(1, min(MAX_NUMBERED, len(ranks) // 2))
    panels = []
    for algorithm, group in configurations.groupby("algorithm"):
        own = ranks[group.index]
        panel = figure("alpha", f"eta ({algorithm})", height=340, legend=False)
        panel.add_scatter(
            x=group.alpha,
            y=group.eta,
            mode="markers+text",
            text=_rank_labels(group, own, numbered, configurations),
            textposition="top center",
            marker={
                "size": 13,
                "color": own,
                "cmin": 1,
                "cmax": max(2, int(ranks.max())),
                "colorscale": "Viridis",
                "reversescale": True,
                "line": {"width": 1, "color": MUTED},
            },
            hovertext=[
                html.escape(f"{configuration_label(row)}: rank {rank}, mean {number(row['mean'])}")
                for (_, row), rank in zip(group.iterrows(), own, strict=True)
            ],
            hoverinfo="text",
        )
        panel.update_xaxes(range=_padded(configurations.alpha))
        panel.update_yaxes(range=_padded(configurations.eta))
        panels.append(panel)
    top = configurations[ranks <= max(1, len(ranks) // 4)]
    text = (
        f"The best quarter ({len(top)} of {len(ranks)} configurations) lies at alpha {_range(top.alpha)} and eta "
        f"{_range(top.eta)}; brighter is better, the best {numbered} carry their rank."
    )
    return Picture("ranks", title, text, tuple(panels))


def _rank_labels(group: pd.DataFrame, ranks: "pd.Series[int]", numbered: int, every: pd.DataFrame) -> list[str]:
    """The best ranks beside their points; those of points too near to each other share one text."""
    x, y = (group[name] / ((every[name].max() - every[name].min()) or 1.0) for name in ("alpha", "eta"))
    labels: dict[Any, str] = dict.fromkeys(group.index, "")
    owners: list[Any] = []
    for place in ranks[ranks <= numbered].sort_values().index:
        near = [owner for owner in owners if abs(x[owner] - x[place]) < ROOM and abs(y[owner] - y[place]) < ROOM]
        owner = near[0] if near else place
        labels[owner] += f", {ranks[place]}" if near else f"{ranks[place]}"
        owners += [] if near else [place]
    return list(labels.values())


def variants_compared(sweep: Sweep) -> Picture:
    """Interquartile mean of each update rule, with interval and probability of improvement."""
    title, complete = "Update rules compared", sweep.complete()
    if complete.empty:
        return Picture("variants", title, "No trial has a score yet.")
    complete = complete[complete.configuration.isin(sweep.configurations().configuration)]
    sign = 1 if sweep.objective.mode == "max" else -1
    shades = colours(sweep.trials.variant)
    estimates = {
        str(name): bootstrap([list(own.score) for _, own in group.groupby("configuration")], interquartile_mean)
        for name, group in complete.groupby("variant")
    }
    order = sorted(estimates, key=lambda name: sign * estimates[name].value)
    drawing = figure(sweep.objective.metric, height=90 + 58 * len(order), legend=False)
    for name in order:
        scores, estimate = complete[complete.variant == name], estimates[name]
        drawing.add_scatter(
            x=scores.score,
            y=[name] * len(scores),
            mode="markers",
            marker={"color": translucent(shades[name], 0.45), "size": 8},
            hovertext=[hover(row, f"score {number(row.score)}") for row in rows(scores)],
            hoverinfo="text",
        )
        drawing.add_scatter(
            x=[estimate.value],
            y=[name],
            mode="markers",
            marker={"color": shades[name], "size": 15, "symbol": "diamond", "line": {"width": 1, "color": MUTED}},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [estimate.high - estimate.value],
                "arrayminus": [estimate.value - estimate.low],
                "thickness": 2,
                "color": shades[name],
            },
            hovertext=f"{html.escape(name)}: {number(estimate.value)} "
            f"[{number(estimate.low)}, {number(estimate.high)}]",
            hoverinfo="text",
        )
    label_rows(drawing, order)
    first = order[-1]
    text = f"{first} leads with an interquartile mean of {number(estimates[first].value)}"
    values = {name: list(sign * complete[complete.variant == name].score) for name in order}
    if len(values[first]) == 1:
        return Picture("variants", title, text + " of a single trial, which has no interval.", (drawing,))
    text += f" ({LEVEL:.0%} interval {number(estimates[first].low)} to {number(estimates[first].high)})"
    chances = [
        f"{probability_of_improvement(values[first], values[name]):.0%} over {name}"
        for name in order[-2:-6:-1]
        if len(values[name]) > 1
    ]
    if chances:
        text += f"; a trial of it beats one of another rule with probability {', '.join(chances)}"
    return Picture("variants", title, text + ".", (drawing,))


def paired_differences(sweep: Sweep) -> Picture:
    """Difference to the plain algorithm on the same seed."""
    title, complete = "Difference to the plain baseline on the same seed", sweep.complete()
    pairs = baseline_pairs(complete)
    if pairs.empty:
        return Picture(
            "paired", title, "No configuration shares a seed with a plain baseline (alpha 0, eta 0) yet."
        )
    order = (
        pairs.groupby("label", sort=False).difference.mean().sort_values(ascending=sweep.objective.mode == "max")
    )
    drawn, shades = order.tail(MAX_PAIRED_ROWS), colours(sweep.trials.variant)
    drawing = figure(f"difference of {sweep.objective.metric}", height=90 + 48 * len(drawn), legend=False)
    drawing.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    for label in drawn.index:
        own = pairs[pairs.label == label]
        shade = shades[own.variant.iloc[0]]
        drawing.add_scatter(
            x=own.difference,
            y=[label] * len(own),
            mode="markers",
            marker={"color": translucent(shade, 0.55), "size": 9},
            hovertext=[html.escape(f"{label}, seed {row.seed}: {signed(row.difference)}") for row in rows(own)],
            hoverinfo="text",
        )
        drawing.add_scatter(
            x=[own.difference.mean()],
            y=[label],
            mode="markers",
            marker={"color": shade, "size": 15, "symbol": "line-ns", "line": {"width": 3, "color": shade}},
            hoverinfo="skip",
        )
    label_rows(drawing, list(drawn.index))
    better = pairs.groupby("label").difference.agg(lambda values: _all_better(values, sweep.objective.mode))
    label = order.index[-1]
    text = (
        f"{int(better.sum())} of {len(order)} configurations beat the plain algorithm on every shared seed; "
        f"the largest mean difference is {signed(order.iloc[-1])} ({label})."
    )
    if len(drawn) < len(order):
        text += f" The best {len(drawn)} are drawn."
    return Picture("paired", title, text, (drawing,))


def baseline_pairs(complete: pd.DataFrame) -> pd.DataFrame:
    """Score minus the score of the same algorithm's plain baseline on the same seed.

    Returns:
        label, variant, seed, difference; one row per trial that has a partner.
    """
    plain = complete[(complete.alpha == 0) & (complete.eta == 0)]
    base = plain.groupby(["algorithm", "seed"]).score.mean().rename("base").reset_index()
    others = complete.drop(index=plain.index).merge(base, on=["algorithm", "seed"])
    labels = [configuration_label(row) for row in rows(others)]
    return others.assign(label=labels, difference=others.score - others.base)[
        ["label", "variant", "seed", "difference"]
    ]


def best_so_far(sweep: Sweep) -> Picture:
    """Scores in the order of the trials, and the best up to each."""
    title = "Best so far"
    scored = sweep.trials[sweep.trials.score.notna()]
    if scored.empty:
        return Picture("best", title, "No trial has a score yet.")
    running = scored.score.cummax() if sweep.objective.mode == "max" else scored.score.cummin()
    numbers = scored.index + 1
    drawing = figure("trial, in the order of start", sweep.objective.metric)
    drawing.add_scatter(
        x=numbers, y=running, mode="lines", line={"shape": "hv", "color": MUTED, "width": 2}, name="best so far"
    )
    for algorithm, shade in colours(sweep.trials.algorithm).items():
        own = scored[scored.algorithm == algorithm]
        drawing.add_scatter(
            x=own.index + 1,
            y=own.score,
            mode="markers",
            name=algorithm,
            marker={"color": shade, "size": 9},
            hovertext=[hover(row, f"score {number(row.score)}") for row in rows(own)],
            hoverinfo="text",
        )
    shares = figure(sweep.objective.metric, "trials", legend=False)
    shares.add_histogram(x=scored.score, nbinsx=20, marker={"color": MUTED})
    last = int(running.index[int(np.argmax(running.to_numpy() == running.iloc[-1]))]) + 1
    low, middle, high = scored.score.quantile([0.25, 0.5, 0.75])
    text = (
        f"The best score, {number(running.iloc[-1])}, was reached by trial {last} of {len(sweep.trials)}; "
        f"half of all scores lie between {number(low)} and {number(high)}, the median is {number(middle)}."
    )
    return Picture("best", title, text, (drawing, shares))


def parameter_importance(sweep: Sweep) -> Picture:
    """Share of the score's rank variance that each parameter explains alone."""
    title, configurations = "Parameter importance", sweep.configurations()
    found = importances(configurations, sweep.searched)
    if not found:
        text = (
            f"{len(configurations)} configurations are complete; importance needs {MIN_CONFIGURATIONS} of them "
            "and a parameter that varies."
        )
        return Picture("importance", title, text)
    found = found[:12]
    drawing = figure("share of rank variance explained", height=130 + 46 * len(found))
    names = [short_name(importance.parameter) for importance in found[::-1]]
    drawing.add_bar(
        x=[importance.share.value for importance in found[::-1]],
        y=names,
        orientation="h",
        width=0.35,
        name="this sweep",
        marker={"color": translucent("#3d85c6", 0.8)},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [importance.share.high - importance.share.value for importance in found[::-1]],
            "arrayminus": [importance.share.value - importance.share.low for importance in found[::-1]],
            "color": MUTED,
        },
    )
    drawing.add_scatter(
        x=[importance.chance for importance in found[::-1]],
        y=names,
        mode="markers",
        name="what chance reaches (95 %)",
        marker={"symbol": "line-ns", "size": 18, "line": {"width": 3, "color": FAILED}},
    )
    label_rows(drawing, names)
    above = [
        short_name(importance.parameter) for importance in found if importance.share.value > importance.chance
    ]
    first = found[0]
    text = (
        f"{short_name(first.parameter)} explains the most, {first.share.value:.0%} of the rank variance of "
        f"{len(configurations)} configurations (interval {first.share.low:.0%} to {first.share.high:.0%}); "
        + (f"above chance: {', '.join(above)}." if above else "no parameter stands above chance.")
    )
    return Picture("importance", title, text, (drawing,))


def _seed_dots(drawing: go.Figure, trials: pd.DataFrame, column: str, name: str, shade: str) -> None:
    for state, symbol in (("COMPLETE", "circle"), ("PRUNED", "circle-open")):
        own = trials[(trials.state == state) & trials.score.notna()]
        if own.empty:
            continue
        drawing.add_scatter(
            x=own[column],
            y=own.score,
            mode="markers",
            name=name if state == "COMPLETE" else f"{name}, stopped early",
            marker={"color": shade, "size": 9, "symbol": symbol},
            hovertext=[hover(row, f"score {number(row.score)}", row.state.lower()) for row in rows(own)],
            hoverinfo="text",
        )


def _band(drawing: go.Figure, x: object, low: object, high: object, shade: str) -> None:
    hidden = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    drawing.add_scatter(x=x, y=low, **hidden)
    drawing.add_scatter(x=x, y=high, fill="tonexty", fillcolor=translucent(shade, 0.18), **hidden)


def _best_index(sweep: Sweep, scores: "pd.Series[float]") -> Any:
    return scores.idxmax() if sweep.objective.mode == "max" else scores.idxmin()


def _padded(values: "pd.Series[float]") -> list[float]:
    """An axis range with room for points and their ranks at the edges."""
    low, high = float(values.min()), float(values.max())
    room = 0.12 * (high - low) or 0.1
    return [low - room, high + room]


def _range(values: "pd.Series[float]") -> str:
    low, high = values.min(), values.max()
    return setting(low) if low == high else f"{setting(low)} to {setting(high)}"


def _all_better(differences: "pd.Series[float]", mode: str) -> bool:
    return bool((differences > 0).all() if mode == "max" else (differences < 0).all())
