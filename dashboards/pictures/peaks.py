"""Plot of rules on one parameter grid: a parabola per rule, and its peak compared with the first
rule's peak.
"""

import html

from dashboards.labels import colors
from dashboards.pictures.theme import Picture, add_points, figure
from dashboards.results import Results
from dashboards.statistics.levels import coverage
from dashboards.statistics.peaks import PeakDifference, compare_peaks, nearest
from dashboards.words import number, peaks, percent_interval, signed
from loptune.parameter_names import shown
from loptune.terminal.table import counted


def fitted_peaks(results: Results) -> Picture | None:
    """Plot each rule's mean scores and fitted parabola, with a table of peaks; None without a
    grid.
    """
    grid = results.tuned_rules.grid
    if grid is None:
        return None
    peak_results = compare_peaks(grid)
    drawing = figure(grid.parameter, results.objective.metric, height=420)
    drawing.update_xaxes(
        type="log", tickvals=grid.values, ticktext=[shown(value) for value in grid.values]
    )
    shades = arm_colors(results)
    for rule, scores, result in zip(grid.rules, grid.scores, peak_results, strict=True):
        means = scores.mean(axis=1)
        named = html.escape(rule)
        notes = []
        for mean, value in zip(means, grid.values, strict=True):
            notes.append(f"{named}: {number(mean)} at {shown(value)}")
        add_points(
            drawing, grid.values, means, notes, name=rule, marker={"color": shades[rule], "size": 9}
        )
        line = {"color": shades[rule], "width": 2}
        octaves, curve = result.peak.parabola.linspace()
        add_points(drawing, 2**octaves, curve, "", mode="lines", name=rule, line=line)
        if result.peak.inside:
            note = f"{named}: peak {number(result.peak.score)} at {number(2**result.peak.octave)}"
            diamond = {"color": shades[rule], "size": 13, "symbol": "diamond"}
            add_points(
                drawing,
                [2**result.peak.octave],
                [result.peak.score],
                [note],
                name=rule,
                marker=diamond,
            )
    text = (
        f"Dots are means over seeds at the same values of {grid.parameter} for every rule. "
        "Each rule's parabola is fitted to the five values around its best; a diamond marks "
        f'its peak. Differences are relative to {grid.rules[0]}; "one value" is the grid value '
        f"nearest to the peak of {grid.rules[0]}."
    )
    headings = [
        "rule",
        f"{grid.parameter} at the peak",
        "peak",
        "difference, each at its peak",
        percent_interval(coverage()),
    ]
    headings += ["difference, all at one value", percent_interval(coverage()), "largest residual"]
    table: list[list[object]] = []
    for result in peak_results:
        peak = result.peak
        place = number(2**peak.octave) if peak.inside else "none"
        row = [result.rule, place, peak.score, *_cells(result.at_best), *_cells(result.at_same)]
        table.append([*row, number(peak.max_residual, 2)])
    return Picture("peaks", "Rules on one grid", text, (drawing,), (headings, table))


def arm_colors(results: Results) -> dict[str, str]:
    """Return a color per arm: the color of its update rule if no two arms share a rule, else a
    color chosen by the arm's name.
    """
    rules = dict(zip(results.table.arm, results.table.rule, strict=True))
    shades = colors(results.table.rule)
    of_rules = {arm: shades[rules[arm]] for arm in results.arms if arm in rules}
    if len(set(of_rules.values())) == len(results.arms):
        return of_rules
    return colors(results.arms)


def peak_line(results: Results) -> str:
    """State each rule's difference from the first, at one grid value and at each rule's own peak;
    empty without a grid.
    """
    grid = results.tuned_rules.grid
    if grid is None:
        return ""
    peak_results = compare_peaks(grid)
    shared = shown(grid.values[nearest(grid, peak_results[0].peak)])
    size = (
        f"{len(grid.values)} values of {grid.parameter} on "
        f"{counted(grid.scores.shape[2], 'seed')} each"
    )
    return (
        f"{peaks(peak_results, grid.parameter, shared)} This uses {size}. Intervals are corrected "
        "for the number of rules. Fitted peaks describe the grid; only fresh seeds are evidence."
    )


def _cells(difference: PeakDifference | None) -> tuple[str, str]:
    if difference is None:
        return "", ""
    low, high = difference.interval
    return signed(difference.mean), f"{signed(low)} to {signed(high)}"
