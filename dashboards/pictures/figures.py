"""Picture of the paired differences to the baseline."""

import html

import pandas as pd

from dashboards.labels import colors
from dashboards.pictures.theme import MUTED, Picture, dots_and_means, figure, label_rows, rows
from dashboards.results import Results
from dashboards.words import signed

_MAX_PAIRED_ROWS = 20


def paired_differences(results: Results) -> Picture | None:
    """Draw the differences to the baseline on the same seed, using fresh seeds if they were run."""
    rules = results.table.rule
    if results.fresh is not None and not baseline_pairs(results.fresh).empty:
        results = results.fresh
    base = results.baseline_label
    pairs = baseline_pairs(results)
    if pairs.empty:
        return None
    order = (
        pairs.groupby("label", sort=False)
        .difference.mean()
        .sort_values(ascending=results.objective.mode == "max")
    )
    drawn = order.tail(_MAX_PAIRED_ROWS)
    shades = colors(results.table.rule) | colors(rules)  # the colors of the rest of the page
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
    gains = pairs.difference if results.objective.mode == "max" else -pairs.difference
    better = (gains > 0).groupby(pairs.label).all()
    label = order.index[-1]
    text = (
        f"{int(better.sum())} of {len(order)} configurations beat the baseline {base} on "
        f"every shared seed; the best mean difference is {signed(order.iloc[-1])} ({label})."
    )
    if len(drawn) < len(order):
        text += f" The best {len(drawn)} are drawn."
    return Picture("paired", "Difference to the baseline on the same seed", text, (drawing,))


def baseline_pairs(results: Results) -> pd.DataFrame:
    """Return label, rule, seed, difference: score minus the baseline's score on each shared seed,
    with failed seeds imputed as in the verdict.
    """
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
