"""Pictures of scores: against a parameter, between update rules, over time. Pure functions of a sweep."""

import html
from collections.abc import Mapping

import pandas as pd

from dashboards.labels import colours
from dashboards.pictures.judged import baseline, comparable, only_changed, seed_scores
from dashboards.pictures.theme import (
    FAILED,
    MUTED,
    Picture,
    add_points,
    dots_and_means,
    figure,
    hover,
    label_rows,
    number,
    rows,
    signed,
    spread,
    translucent,
)
from dashboards.statistics.estimates import (
    LEVEL,
    MIN_CONFIGURATIONS,
    bootstrap,
    importances,
    interquartile_mean,
    probability_of_improvement,
)
from dashboards.sweep import CONTROLS, Sweep
from trainer.config.variants import RULE, short_names

_MAX_PAIRED_ROWS = 20


def variants_compared(sweep: Sweep) -> Picture | None:
    """Interquartile mean of each update rule, with interval and probability of improvement; None below two."""
    title, complete = "Update rules compared", sweep.complete()
    if sweep.trials.variant.nunique() < 2:
        return None
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
    drawing = figure(sweep.objective.metric, height=90 + 58 * len(order))
    for name in order:
        scores, estimate = complete[complete.variant == name], estimates[name]
        notes = [hover(row, f"score {number(row.score)}") for row in rows(scores)]
        dots = {"color": translucent(shades[name], 0.45), "size": 8}
        add_points(drawing, scores.score, [name] * len(scores), notes, marker=dots)
        value, low, high = estimate.value, estimate.low, estimate.high
        note = f"{html.escape(name)}: {number(value)} [{number(low)}, {number(high)}]"
        diamond = {"color": shades[name], "size": 15, "symbol": "diamond", "line": {"width": 1, "color": MUTED}}
        bar = spread(value, low, high, thickness=2, color=shades[name])
        add_points(drawing, [value], [name], note, marker=diamond, error_x=bar)
    label_rows(drawing, order)
    first = order[-1]
    text = f"{first} has the best interquartile mean, {number(estimates[first].value)}"
    values = {name: list(sign * complete[complete.variant == name].score) for name in order}
    if len(values[first]) == 1:
        text += f" of a single trial, which has no interval.{_credit(sweep)}"
        return Picture("variants", title, text, (drawing,))
    text += f" ({LEVEL:.0%} interval {number(estimates[first].low)} to {number(estimates[first].high)})"
    chances = [
        f"{probability_of_improvement(values[first], values[name]):.0%} against {name}"
        for name in order[-2:-6:-1]
        if len(values[name]) > 1
    ]
    if chances:
        text += f"; of all pairs of trials it wins {', '.join(chances)}"
    return Picture("variants", title, f"{text}.{_credit(sweep)}", (drawing,))


def _credit(sweep: Sweep) -> str:
    """The effect of each rule where nothing else differs, if its configurations differ in more than the rule."""
    rule = {*RULE, *CONTROLS}
    others = [name for name in sweep.varied if name not in rule]
    if not others:
        return ""
    named = " and ".join(short_names(others).values())
    changed = only_changed(sweep, rule)
    if changed.empty:
        return f" Its configurations also differ in {named}, and none in the rule alone: no rule is shown to help."
    said = [
        f"{variant} {signed(gains.mean())} ({len(gains)} pair{'s' * (len(gains) > 1)})"
        for variant, gains in changed.groupby("variant").gain
    ]
    return f" Configurations also differ in {named}; where only the rule does: {', '.join(said)}."


def best_differences(sweep: Sweep) -> Picture:
    """Differences to the baseline, on the seeds that decide: fresh ones where they were run."""
    fresh = sweep.confirmation
    decide = sweep if fresh is None or baseline_pairs(fresh).empty else fresh
    return paired_differences(decide, colours(sweep.trials.variant))


def paired_differences(sweep: Sweep, shades: Mapping[str, str] | None = None) -> Picture:
    """Difference to the baseline on the same seed; ``shades`` are the rules' colours on the rest of the page."""
    title = "Difference to the baseline on the same seed"
    base, pairs = baseline(sweep), baseline_pairs(sweep)
    if pairs.empty:
        return Picture("paired", title, "No configuration shares a seed with the baseline yet.")
    order = pairs.groupby("label", sort=False).difference.mean().sort_values(ascending=sweep.objective.mode == "max")
    drawn, shades = order.tail(_MAX_PAIRED_ROWS), {**colours(sweep.trials.variant), **(shades or {})}
    drawing = figure(f"difference of {sweep.objective.metric}", height=90 + 48 * len(drawn))
    drawing.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    for label in drawn.index:
        own = pairs[pairs.label == label]
        shade = shades[own.variant.iloc[0]]
        notes = [html.escape(f"{label}, seed {row.seed}: {signed(row.difference)}") for row in rows(own)]
        dots_and_means(drawing, own.difference, own.label, shade, notes)
    label_rows(drawing, list(drawn.index))
    gains = pairs.difference if sweep.objective.mode == "max" else -pairs.difference
    better = (gains > 0).groupby(pairs.label).all()
    label = order.index[-1]
    text = (
        f"{int(better.sum())} of {len(order)} configurations beat the baseline {base} on every shared seed; "
        f"the largest mean difference is {signed(order.iloc[-1])} ({label})."
    )
    if len(drawn) < len(order):
        text += f" The best {len(drawn)} are drawn."
    return Picture("paired", title, text, (drawing,))


def baseline_pairs(sweep: Sweep) -> pd.DataFrame:
    """Score minus the baseline's on the same seed: label, variant, seed, difference; of trials with a partner."""
    trials, base = comparable(sweep), baseline(sweep)
    if base is None:
        return pd.DataFrame(columns=["label", "variant", "seed", "difference"])
    reference = seed_scores(sweep)[base]
    others = trials[(trials.label != base) & trials.seed.isin(list(reference))]
    return others.assign(difference=others.score - others.seed.map(reference).astype(float))[
        ["label", "variant", "seed", "difference"]
    ].dropna()


def parameter_importance(sweep: Sweep) -> Picture:
    """Share of the score's rank variance that each parameter explains alone."""
    title, configurations = "Parameter importance", sweep.configurations()
    found = importances(configurations, sweep.searched)
    if not found:
        few = f"{len(configurations)} configurations are complete; importance needs {MIN_CONFIGURATIONS} of them."
        text = few if len(configurations) < MIN_CONFIGURATIONS else "No searched parameter varies yet."
        return Picture("importance", title, text)
    found = found[:12]
    drawing = figure("share of rank variance explained", height=130 + 46 * len(found))
    called, upwards = short_names(sweep.searched), found[::-1]
    names = [called[importance.parameter] for importance in upwards]
    value, low, high = zip(*[(one.share.value, one.share.low, one.share.high) for one in upwards], strict=True)
    drawing.add_bar(
        x=value,
        y=names,
        orientation="h",
        width=0.35,
        name="this sweep",
        marker={"color": translucent("#3d85c6", 0.8)},
        error_x=spread(value, low, high, color=MUTED),
    )
    drawing.add_scatter(
        x=[importance.chance for importance in upwards],
        y=names,
        mode="markers",
        name="what chance reaches (95 %)",
        marker={"symbol": "line-ns", "size": 18, "line": {"width": 3, "color": FAILED}},
    )
    label_rows(drawing, names)
    above = [called[importance.parameter] for importance in found if importance.share.value > importance.chance]
    first = found[0]
    text = (
        f"{called[first.parameter]} explains the most, {first.share.value:.0%} of the rank variance of "
        f"{len(configurations)} configurations (interval {first.share.low:.0%} to {first.share.high:.0%}); "
        + (f"above chance: {', '.join(above)}." if above else "no parameter stands above chance.")
    )
    return Picture("importance", title, text, (drawing,))
