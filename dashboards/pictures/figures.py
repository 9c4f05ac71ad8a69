"""Pictures of differences to the baseline, and of the importance of parameters. Pure functions of a sweep."""

import html
from collections.abc import Mapping

import pandas as pd

from dashboards.labels import colours
from dashboards.pictures.theme import FAILED, MUTED, Picture, dots_and_means, figure, label_rows, rows, translucent
from dashboards.results import Results
from dashboards.statistics.estimates import importances
from dashboards.words import signed
from trainer.config.variants import short_names

_MAX_PAIRED_ROWS = 20


def best_differences(results: Results) -> Picture | None:
    """Differences to the baseline, on the seeds that decide: fresh ones where they were run."""
    fresh = results.fresh
    decide = results if fresh is None or baseline_pairs(fresh).empty else fresh
    return paired_differences(decide, colours(results.table.rule))


def paired_differences(results: Results, shades: Mapping[str, str] | None = None) -> Picture | None:
    """Difference to the baseline on the same seed; ``shades`` are the rules' colours on the rest of the page."""
    base, pairs = results.baseline_label, baseline_pairs(results)
    if pairs.empty:
        return None
    order = pairs.groupby("label", sort=False).difference.mean().sort_values(ascending=results.objective.mode == "max")
    drawn, shades = order.tail(_MAX_PAIRED_ROWS), {**colours(results.table.rule), **(shades or {})}
    drawing = figure(f"difference of {results.objective.metric}", height=90 + 48 * len(drawn))
    drawing.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    for label in drawn.index:
        own = pairs[pairs.label == label]
        shade = shades[own.rule.iloc[0]]
        notes = [html.escape(f"{label}, seed {row.seed}: {signed(row.difference)}") for row in rows(own)]
        dots_and_means(drawing, own.difference, own.label, shade, notes)
    label_rows(drawing, list(drawn.index))
    gains = pairs.difference if results.objective.mode == "max" else -pairs.difference
    better = (gains > 0).groupby(pairs.label).all()
    label = order.index[-1]
    text = (
        f"{int(better.sum())} of {len(order)} configurations beat the baseline {base} on every shared seed; "
        f"the largest mean difference is {signed(order.iloc[-1])} ({label})."
    )
    if len(drawn) < len(order):
        text += f" The best {len(drawn)} are drawn."
    return Picture("paired", "Difference to the baseline on the same seed", text, (drawing,))


def baseline_pairs(results: Results) -> pd.DataFrame:
    """Return label, rule, seed, difference: score minus the baseline's on a seed of both, as the verdict counts it."""
    base = results.baseline_label
    columns = ["label", "rule", "seed", "difference"]
    if base is None:
        return pd.DataFrame(columns=columns)
    rules = dict(zip(results.table.label, results.table.rule, strict=True))
    counted = results.counted_scores
    reference = counted[base]
    pairs = [
        (label, rules[label], seed, score - reference[seed])
        for label, row in counted.items()
        for seed, score in row.items()
        if label != base and seed in reference
    ]
    return pd.DataFrame(pairs, columns=columns)


def parameter_importance(results: Results) -> Picture | None:
    """Share of the score's rank variance that each parameter explains alone."""
    configurations = results.configurations
    found = importances(configurations, results.searched)
    if not found:
        return None
    found = found[:12]
    drawing = figure("share of rank variance explained", height=130 + 46 * len(found))
    called, upwards = short_names(results.searched), found[::-1]
    names = [called[importance.parameter] for importance in upwards]
    drawing.add_bar(
        x=[importance.share for importance in upwards],
        y=names,
        orientation="h",
        width=0.35,
        name="this sweep",
        marker={"color": translucent("#3d85c6", 0.8)},
    )
    drawing.add_scatter(
        x=[importance.chance for importance in upwards],
        y=names,
        mode="markers",
        name="what chance reaches (95 %)",
        marker={"symbol": "line-ns", "size": 18, "line": {"width": 3, "color": FAILED}},
    )
    label_rows(drawing, names)
    above = [called[importance.parameter] for importance in found if importance.share > importance.chance]
    first = found[0]
    text = (
        f"{called[first.parameter]} explains the most, {first.share:.0%} of the rank variance of "
        f"{len(configurations)} configurations; "
        + (f"above chance: {', '.join(above)}." if above else "no parameter stands above chance.")
    )
    return Picture("importance", "Parameter importance", text, (drawing,))
