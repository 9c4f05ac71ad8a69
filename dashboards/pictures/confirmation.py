"""Plot of the finalists: score in the search, on fresh seeds, and on the held-out test."""

import html

import pandas as pd

from dashboards.labels import PALETTE
from dashboards.pictures.theme import MUTED, Picture, dots_and_means, figure, label_rows, rows
from dashboards.results import Results
from dashboards.words import number
from loptune.terminal.table import counted

_KINDS = {  # colors at the end of the palette, which update rules rarely use
    "searched": ("in the search", MUTED),
    "fresh": ("fresh seeds", PALETTE[11]),
    "test": ("fresh seeds, held-out test", PALETTE[9]),
}


def finalists(results: Results) -> Picture | None:
    """Plot finalists and baseline on fresh seeds and the held-out test; None before such trials
    exist.
    """
    if results.fresh is None or results.fresh.comparable.empty:
        return None
    objective = results.fresh.objective
    table = finalist_scores(results, results.fresh)
    means = table.pivot_table(index="label", columns="kind", values="value", aggfunc="mean")
    decisive = "test" if objective.held_out else "fresh"
    order = list(means.sort_values(decisive, ascending=objective.sign > 0).index)
    drawing = figure(objective.metric, height=110 + 72 * len(order))
    for kind, (name, shade) in _KINDS.items():
        of_kind = table[table.kind == kind]
        if of_kind.empty:
            continue
        notes = []
        for row in rows(of_kind):
            note = f"{row.label}, seed {row.seed}, {name}: {number(row.value)}"
            notes.append(html.escape(note))
        dots_and_means(drawing, of_kind.value, of_kind.label, shade, notes, name)
    label_rows(drawing, order)
    seeds = results.fresh.comparable.seed.nunique()
    caption = _sentence(means.loc[order[::-1]], seeds, objective.held_out_metric)
    return Picture(
        "finalists", "Finalists on fresh seeds and the held-out test", caption, (drawing,)
    )


def finalist_scores(results: Results, fresh: Results) -> pd.DataFrame:
    """Return one row per score of a finalist: label, kind (searched, fresh or test), seed, value.

    Failed fresh seeds have no score.
    """
    judged = fresh.comparable
    # A finalist's label may differ here: labels name settings that vary, and fewer vary among
    # finalists.
    labels = dict(zip(judged.configuration, judged.label, strict=True))
    searched = results.comparable
    searched = searched[searched.configuration.isin(labels)]
    # If the objective is measured on the held-out test, a fresh seed has only that score.
    kind = "test" if fresh.objective.held_out else "fresh"
    scores = []
    for configuration, row in fresh.seed_scores.items():
        label = fresh.labels[configuration]
        scores += [(label, kind, seed, score) for seed, score in row.items()]
    fresh_scores = pd.DataFrame(scores, columns=["label", "kind", "seed", "value"])
    parts = [
        searched.assign(
            kind="searched", value=searched.score, label=searched.configuration.map(labels)
        ),
        fresh_scores,
    ]
    if kind == "fresh":
        parts.append(judged.assign(kind="test", value=judged.test))
    return pd.concat(parts)[fresh_scores.columns].dropna(subset=["value"])


def _sentence(means: pd.DataFrame, seeds: int, held_out_metric: str) -> str:
    sentences = []
    for label, scores in means.iterrows():
        row = scores.dropna()
        parts = []
        if "fresh" in row:
            parts.append(f"{number(row['fresh'])} on fresh seeds")
            if "searched" in row:
                parts.append(f"{row['fresh'] - row['searched']:+.3f} compared with the search")
        if "test" in row:
            parts.append(f"{number(row['test'])} on the held-out test")
        sentences.append(f"{label}: {', '.join(parts)}")
    note = f"Nothing was held out: no trial logged {held_out_metric}"
    if "test" in means:
        note = f"Held-out test: {held_out_metric}"
    return f"{'; '.join(sentences)} (up to {counted(seeds, 'fresh seed')}). {note}."
