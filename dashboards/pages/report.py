"""A sweep's report: one self-contained HTML file, the trials and the numbers of every picture as CSV beside it."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from dashboards.pages.export import write_csvs, write_pngs
from dashboards.pages.html import render_page, render_table
from dashboards.pages.samples import TITLE, answers_of_both, samples_html
from dashboards.pictures.confirmation import finalists, full_finalists
from dashboards.pictures.cost import timeline
from dashboards.pictures.curves import failures, learning_curves, parallel_coordinates, training_health
from dashboards.pictures.decision import decision
from dashboards.pictures.difficulty import by_difficulty
from dashboards.pictures.figures import (
    best_so_far,
    paired_differences,
    parameter_importance,
    variants_compared,
)
from dashboards.pictures.mechanism import probability_bands, reward_audit
from dashboards.pictures.parameters import ranks, scores_against
from dashboards.pictures.precision import precision
from dashboards.pictures.theme import Picture
from dashboards.pictures.verdict import verdict
from dashboards.queries import Sweep, read_sweep
from dashboards.samples import Answered
from trainer.config.variants import short_names, shown
from trainer.files import write_atomically

REPORT_FILE = "report.html"
TRIALS_FILE = "trials.csv"
DATA_FOLDER = "data"  # a CSV per picture
IMAGE_FOLDER = "images"  # a PNG per figure

# The pictures of a report below those of the parameters, in its order. Each takes a sweep and says in one sentence
# what it shows; None where there is nothing to tell apart.
PICTURES: list[Callable[[Sweep], Picture | None]] = [
    ranks,
    paired_differences,
    precision,
    learning_curves,
    by_difficulty,
    best_so_far,
    parameter_importance,
    parallel_coordinates,
    training_health,
    probability_bands,
    failures,
    timeline,
    finalists,
    full_finalists,
    decision,
    reward_audit,
]

Cell = tuple[str, str, str]


def write_report(sweep_name: str, uri: str, out_dir: Path, *, png: bool = False) -> Path:
    """Write ``report.html``, ``trials.csv`` and ``data/*.csv`` for a sweep recorded in MLflow.

    Args:
        sweep_name: value of the tag ``loptune.sweep``.
        uri: of the MLflow store.
        out_dir: folder to write into.
        png: also draw ``images/*.png``.

    Returns:
        The path of the HTML file.

    Raises:
        MissingError: the store has no such sweep, or PNGs are wanted without a Chrome.
        StorageError: the store cannot be read.
    """
    return write_report_of(read_sweep(sweep_name, uri), out_dir, png=png)


def write_report_of(sweep: Sweep, out_dir: Path, *, png: bool = False) -> Path:
    """The same for a sweep that has been read."""
    pictures = draw(sweep)
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / REPORT_FILE
    write_atomically(out_dir / TRIALS_FILE, sweep.trials.to_csv(index=False))
    write_csvs(pictures, out_dir / DATA_FOLDER)
    write_atomically(path, report_html(sweep, pictures, answers_of_both(sweep)))
    if png:
        write_pngs(pictures, out_dir / IMAGE_FOLDER)
    return path


def draw(sweep: Sweep) -> list[Picture]:
    """All pictures of a sweep, in the order of the page."""
    first = [variants_compared(sweep), *scores_against(sweep)]
    return [picture for picture in (*first, *(draw_one(sweep) for draw_one in PICTURES)) if picture is not None]


def report_html(sweep: Sweep, pictures: Sequence[Picture], answered: Sequence[Answered] = ()) -> str:
    """The report as one page."""
    objective = sweep.objective
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    meta = (
        f"{len(sweep.trials)} trials, {objective.mode} of {objective.metric} (mean of the last "
        f"{objective.window} evaluations), read from MLflow on {now}. The sweep is {sweep.progress}."
    )
    samples = samples_html(sweep, answered)
    section = ("completions", TITLE, samples) if samples else None
    return render_page(sweep.name, meta, verdict(sweep), pictures, trials_html(sweep), section=section)


def trials_html(sweep: Sweep) -> str:
    """The table of all trials, the best first, failed ones last with their reason."""
    parameters = [name for name in sweep.searched if name in sweep.trials.columns]
    headings = ["trial", "configuration", "seed", "state", "score", "best", "step"]
    headings += [*short_names(parameters).values(), "minutes", "reason"]
    ordered = sweep.trials.sort_values("score", ascending=sweep.objective.mode == "min", na_position="last")
    table = []
    for _, row in ordered.iterrows():
        cells = [_cell(row[name]) for name in ("trial", "configuration", "seed")]
        cells.append((str(row["state"]), str(row["state"]), str(row["state"])))
        cells += [_cell(row[name], decimals=4) for name in ("score", "best")]
        cells += [_cell(row[name]) for name in ("step", *parameters)]
        cells.append(_cell(row["duration_s"] / 60, decimals=1))
        cells.append((str(row["reason"]), str(row["reason"]), "reason"))
        table.append(cells)
    return render_table(headings, table)


def _cell(value: object, decimals: int | None = None) -> Cell:
    if isinstance(value, str):
        return value, value, "number" if value.isdigit() else ""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return "", "", "number"
    exact = float(value)  # type: ignore[arg-type]
    text = shown(exact) if decimals is None else f"{exact:.{decimals}f}"
    return text, repr(exact), "number"
