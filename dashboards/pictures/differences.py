"""Differences of all arms from the baseline: the table, and a plot with intervals and seeds."""

import html

import pandas as pd
import plotly.graph_objects as go

from dashboards.labels import colors
from dashboards.pictures.theme import (
    MUTED,
    Picture,
    add_points,
    dots_and_means,
    figure,
    label_rows,
    rows,
)
from dashboards.results import Results
from dashboards.statistics.arm_table import ArmRow
from dashboards.statistics.levels import coverage
from dashboards.statistics.seed_noise import finite_scores
from dashboards.words import between, number, percent_interval, signed
from loptune.errors import joined

_MAX_DRAWN = 20


def arm_cells(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the table of all arms."""
    cells = []
    for arm in results.arm_table:
        interval = p_value = ""
        if arm.interval is not None:
            interval = f"{signed(arm.interval[0])} to {signed(arm.interval[1])}"
        if arm.p_value is not None:
            p_value = f"{max(arm.p_value, 1e-4):.2g}"
        difference = "" if pd.isna(arm.difference) else signed(arm.difference)
        cells.append(
            [
                arm.name,
                str(arm.runs),
                str(arm.missing),
                str(arm.failed),
                number(arm.mean),
                "" if pd.isna(arm.sd) else number(arm.sd, 2),
                difference,
                interval,
                p_value,
                arm.outcome,
            ]
        )
    headings = ["configuration", "runs", "missing", "failed", "mean", "SD", "difference"]
    return [*headings, _interval_of(results.arm_table), "p (two-sided)", "result"], cells


def task_cells(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the table by task: each configuration's difference on each task.

    The intervals are not corrected for the number of tasks.
    """
    rows: list[list[str]] = []
    headings: list[str] = []
    for task, part in results.by_task.items():
        headings, cells = arm_cells(part)
        rows += [[task, *row] for row in cells]
    return ["task", *headings], rows


def score_cells(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the table by benchmark and guard: each configuration's difference
    in each score.

    The intervals are not corrected for the number of benchmarks.
    """
    rows: list[list[str]] = []
    headings: list[str] = []
    for score, part in _parts(results).items():
        headings, cells = arm_cells(part)
        rows += [[score, *row] for row in cells]
    return ["score", *headings], rows


def _parts(results: Results) -> dict[str, Results]:
    """Return benchmark or guard -> the runs with this score. For a metric that is both, the runs
    have the guard's margin.
    """
    parts = dict(results.by_score)
    for guard in results.guards:
        parts[guard.metric] = guard.results
    return parts


def benchmarks(results: Results) -> Picture | None:
    """Plot the differences of every benchmark and guard; None for a single score."""
    drawn = []
    for score, part in _parts(results).items():
        picture = differences(part)
        if picture is not None:
            figure = picture.figures[0]
            figure.update_layout(title={"text": html.escape(score)})
            drawn.append(figure)
    if not drawn:
        return None
    text = (
        "Each score is compared separately. The intervals are not corrected for the number of "
        "scores."
    )
    if results.guards:
        named = joined([guard.metric for guard in results.guards])
        text += f" Guards: {named}; a dashed line is the largest loss that a guard tolerates."
    table = filled_columns(*score_cells(results))
    return Picture("benchmarks", "Difference by score", text, tuple(drawn), table)


def filled_columns(
    headings: list[str], cells: list[list[str]]
) -> tuple[list[str], list[list[str]]]:
    """Leave out empty columns, and counts that are all 0, because the table is wide."""
    kept = []
    for column, heading in enumerate(headings):
        values = {row[column] for row in cells}
        counts_nothing = heading in ("missing", "failed") and values == {"0"}
        if values != {""} and not counts_nothing:
            kept.append(column)
    return [headings[column] for column in kept], [
        [row[column] for column in kept] for row in cells
    ]


def _interval_of(arms: list[ArmRow]) -> str:
    """Return the name of the arms' intervals with their coverage, such as ``90% interval``."""
    covers = next((arm.coverage for arm in arms if arm.coverage is not None), coverage())
    return percent_interval(covers)


def differences(results: Results) -> Picture | None:
    """Plot each arm's difference from the baseline with its interval, and its seeds as dots.
    Without a table of arms, plot `seed_differences`. None if nothing can be compared.
    """
    if not results.arm_table:
        return seed_differences(results)
    arms = [arm for arm in results.arm_table if arm.outcome not in ("baseline", "not compared")]
    if not arms:
        return None
    judged = results if results.fresh is None else results.fresh
    drawn = list(reversed(arms[:_MAX_DRAWN]))
    rules = dict(zip(judged.table.configuration, judged.table.rule, strict=True))
    shades = colors(judged.table.rule) | colors(results.table.rule)
    metric = judged.objective.metric
    drawing = figure(f"difference of {metric} from the baseline", height=90 + 48 * len(drawn))
    worthwhile = judged.objective.sign * judged.objective.worthwhile
    if worthwhile:
        drawing.add_vrect(x0=0, x1=worthwhile, fillcolor=MUTED, opacity=0.18, line_width=0)
    drawing.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    if judged.not_worse_by is not None:
        margin = -judged.objective.sign * judged.not_worse_by
        drawing.add_vline(x=margin, line={"color": MUTED, "width": 1, "dash": "dash"})
    pairs = baseline_pairs(judged)
    for arm in drawn:
        of_arm = pairs[pairs.configuration == arm.configuration]
        _draw(drawing, arm, of_arm, shades[rules[arm.configuration]])
    label_rows(drawing, [arm.name for arm in drawn])
    text = _sentence(arms, judged)
    if len(drawn) < len(arms):
        text += f" The best {len(drawn)} are shown."
    title = "Difference from the baseline"
    if any(arm.interval is not None for arm in arms):
        title += f", with {_interval_of(arms)}s"
    return Picture("paired", title, text, (drawing,), filled_columns(*arm_cells(results)))


def _draw(drawing: go.Figure, arm: ArmRow, pairs: pd.DataFrame, shade: str) -> None:
    """Plot one arm's interval, mean difference and seeds."""
    if arm.layout == "paired":
        notes = []
        for seed, difference in zip(pairs.seed, pairs.difference, strict=True):
            notes.append(html.escape(f"{arm.name}, seed {seed}: {signed(difference)}"))
        dots = {"color": shade, "opacity": 0.45, "size": 8}
        add_points(drawing, pairs.difference, pairs.label, notes, marker=dots)
    note = f"{arm.name}: {signed(arm.difference)}"
    if arm.interval is not None:
        low, high = arm.interval
        note += f", {between(arm.interval, arm.coverage)}"
        line = {"color": shade, "width": 3}
        add_points(
            drawing, [low, high], [arm.name] * 2, [html.escape(note)] * 2, mode="lines", line=line
        )
    bar = {"color": shade, "width": 3}
    marker = {"color": shade, "size": 18, "symbol": "line-ns", "line": bar}
    add_points(drawing, [arm.difference], [arm.name], [html.escape(note)], marker=marker)


def _sentence(arms: list[ArmRow], judged: Results) -> str:
    """State how many arms are better or worse, and the meaning of the band."""
    counts = pd.Series([arm.outcome for arm in arms]).value_counts()
    baseline = judged.labels[judged.compared_with or ""]
    found = ", ".join(f"{counts[kind]} {kind}" for kind in counts.index)
    count = "1 configuration" if len(arms) == 1 else f"{len(arms)} configurations"
    lines = "These seeds are too few for intervals"
    if any(arm.interval is not None for arm in arms):
        lines = (
            f"Lines are {_interval_of(arms)}s, with this coverage over all configurations together"
        )
    text = f"{count} compared with {baseline}: {found}. {lines}; dots are single seeds."
    if judged.objective.worthwhile:
        text += f" The band marks improvements below {judged.objective.worthwhile:g}, the smallest "
        text += "that matters."
    return text


def seed_differences(results: Results) -> Picture | None:
    """Plot the differences from the baseline on the same seed, using fresh seeds if they were run.

    Used for rules tuned separately and for interim analyses, which have their own intervals. None
    if no seed is shared.
    """
    rules = results.table.rule
    if results.fresh is not None and not baseline_pairs(results.fresh).empty:
        results = results.fresh
    base = results.compared_with
    pairs = baseline_pairs(results)
    if pairs.empty or base is None:
        return None
    order = (
        pairs.groupby("label", sort=False)
        .difference.mean()
        .sort_values(ascending=results.objective.sign > 0)
    )
    drawn = order.tail(_MAX_DRAWN)
    shades = colors(results.table.rule) | colors(rules)  # the same as on the rest of the page
    drawing = figure(f"difference of {results.objective.metric}", height=90 + 48 * len(drawn))
    drawing.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    for label in drawn.index:
        of_label = pairs[pairs.label == label]
        shade = shades[of_label.rule.iloc[0]]
        notes = [
            html.escape(f"{label}, seed {row.seed}: {signed(row.difference)}")
            for row in rows(of_label)
        ]
        dots_and_means(drawing, of_label.difference, of_label.label, shade, notes)
    label_rows(drawing, list(drawn.index))
    gains = results.objective.sign * pairs.difference
    better = (gains > 0).groupby(pairs.label).all()
    label = order.index[-1]
    text = (
        f"{int(better.sum())} of {len(order)} configurations beat the baseline "
        f"{results.labels[base]} on every shared seed; the best mean difference is "
        f"{signed(order.iloc[-1])} ({label})."
    )
    if len(drawn) < len(order):
        text += f" The best {len(drawn)} are shown."
    return Picture("paired", "Difference from the baseline on the same seed", text, (drawing,))


def baseline_pairs(results: Results) -> pd.DataFrame:
    """Return rows of configuration, label, rule, seed and difference (the score minus the
    baseline's score) for each shared seed on which neither run failed.
    """
    base = results.compared_with
    columns = ["configuration", "label", "rule", "seed", "difference"]
    counted = finite_scores(results.seed_scores)
    if base is None or base not in counted:
        return pd.DataFrame(columns=columns)
    rules = dict(zip(results.table.configuration, results.table.rule, strict=True))
    reference = counted[base]
    pairs = []
    for configuration, row in counted.items():
        if configuration == base:
            continue
        for seed, score in row.items():
            if seed in reference:
                label = results.labels[configuration]
                rule = rules[configuration]
                pairs.append((configuration, label, rule, seed, score - reference[seed]))
    return pd.DataFrame(pairs, columns=columns)
