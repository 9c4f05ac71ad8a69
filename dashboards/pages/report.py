"""Write a sweep's report: one self-contained HTML file, and a CSV file of the trials."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.headline import headline, verdict_sentences
from dashboards.pages.html import Cell, cell, render_page
from dashboards.pictures.confirmation import finalists
from dashboards.pictures.curves import failures, learning_curves, training_health
from dashboards.pictures.differences import benchmarks, differences
from dashboards.pictures.each_parameter import each_parameter
from dashboards.pictures.front import two_objectives
from dashboards.pictures.mechanism import probability_bands
from dashboards.pictures.parameters import scores_against
from dashboards.pictures.peaks import fitted_peaks
from dashboards.pictures.precision import precision
from dashboards.pictures.questions import questions
from dashboards.pictures.theme import Picture
from dashboards.pictures.tournament import tournament
from dashboards.results import Results
from dashboards.words import plural
from loptune.files import storage_error, write_atomically
from loptune.parameter_names import short_names

_REPORT_FILE = "report.html"
_TRIALS_FILE = "trials.csv"
_SHOWN_MINUTES = 0.05
# column of the table of all trials; the blank distinguishes it from parameter names
_FRESH = "fresh seed"
# characters that start a formula in a spreadsheet
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def _verdict_pictures(results: Results) -> list[Picture | None]:
    return [
        fitted_peaks(results),
        tournament(results),
        differences(results),
        benchmarks(results),
        two_objectives(results),
        finalists(results),
        precision(results),
    ]


def _parameter_pictures(results: Results) -> list[Picture | None]:
    return [each_parameter(results), *scores_against(results)]


def _training_pictures(results: Results) -> list[Picture | None]:
    return [
        learning_curves(results),
        training_health(results),
        probability_bands(results),
        failures(results),
    ]


# Chapters of a report in order. Each function creates the chapter's sections; None is a section
# with nothing to show.
_CHAPTERS: dict[str, Callable[[Results], list[Picture | None]]] = {
    "Verdict": _verdict_pictures,
    "What matters": _parameter_pictures,
    "How training went": _training_pictures,
}
# figure key -> the decision that it supports.
_DECIDES = {
    "peaks": "whether a rule improves scores more than another value of this parameter does",
    "tournament": "which rule to confirm, and which to tune with more trials",
    "paired": "whether to confirm, and which configuration",
    "benchmarks": "whether the gain is worth its losses",
    "front": "how much of the second objective a better score is worth",
    "finalists": "which configuration to export",
    "each": "which parameter matters, and which value of it",
    "precision": "whether to add seeds or evaluation problems",
    "curves": "whether to train longer or to stop earlier",
    "health": "which settings collapse, and whether the reward is broken",
    "bands": "whether AR and Lopti change what they are meant to change",
    "failures": "what to fix before `sweep resume --retry-failed`",
}
# the decision that the plots of the score against a parameter support
_NEXT_SEARCH = "where to search next, and which parameters to leave out"


def write_pages(results: Results, out_dir: Path) -> Path:
    """Write ``report.html`` and ``trials.csv``, and return the path of the page.

    Raises:
        StorageError: the folder cannot be created.
        OSError: the files cannot be written.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("write the report", out_dir, error) from None
    path = out_dir / _REPORT_FILE
    write_atomically(out_dir / _TRIALS_FILE, _plain_cells(_all_trials(results)).to_csv(index=False))
    write_atomically(path, report_html(results, chapters_of(results)))
    return path


def chapters_of(results: Results) -> dict[str, list[Picture]]:
    """Create the sections of each chapter; a chapter may be empty."""
    chapters: dict[str, list[Picture]] = {}
    for name, sections_of in _CHAPTERS.items():
        chapters[name] = []
        for picture in sections_of(results):
            if picture is not None:
                decides = _DECIDES.get(picture.key, _NEXT_SEARCH)
                chapters[name].append(replace(picture, decides=decides))
    return chapters


def report_html(results: Results, chapters: Mapping[str, Sequence[Picture]]) -> str:
    """Return the report as HTML."""
    objective = results.objective
    window = "last evaluation"
    if objective.window > 1:
        window = f"mean of the last {objective.window} evaluations"
    if results.at_equal_amounts:
        window = f"at equal {plural(results.place)}"
        if results.budget is not None:
            window += f", {results.budget.at:.6g}"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    meta = (
        f"Objective: {objective.mode} {objective.metric} "
        f"({window}). Read from {results.source} on {now}."
    )
    if results.planned is not None and not results.finished:
        meta += f" The sweep is {results.progress}."
    for part in filter(None, (results, results.fresh)):
        meta = " ".join([meta, *part.warnings])
    confirmed = headline(results).confirmed
    sentences = verdict_sentences(results)
    return render_page(
        results.name or "judged runs",
        meta,
        sentences,
        chapters,
        trials_table(results),
        confirmed=confirmed,
        questions=questions(results),
    )


def _all_trials(results: Results) -> pd.DataFrame:
    """Return all trials as a table, with a column that marks fresh seeds if any were run."""
    table = _with_other_scores(results)
    if results.fresh is None or not results.fresh.trials:
        return table
    fresh = _with_other_scores(results.fresh)
    return pd.concat(
        [table.assign(**{_FRESH: "no"}), fresh.assign(**{_FRESH: "yes"})], ignore_index=True
    )


def _with_other_scores(results: Results) -> pd.DataFrame:
    """Return the trials with a column for each benchmark, guard and cost."""
    more = [{**trial.costs, **trial.scores} for trial in results.trials]
    others = pd.DataFrame(more, index=results.table.index)
    known = {*results.table, results.objective.metric}  # the metric is in the column score
    new = [name for name in others if name not in known]
    return pd.concat([results.table, others[new]], axis="columns")


def _plain_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose cells no spreadsheet program evaluates: a string that would be a formula
    gets a leading apostrophe.
    """
    plain = table.map(_plain)
    plain.columns = [_plain(column) for column in table.columns]
    return plain


def _plain(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_FORMULA_SIGNS):
        return value
    try:
        float(value)  # a negative number stored as text
    except ValueError:
        return f"'{value}"
    return value


def trials_table(results: Results) -> tuple[list[str], list[list[Cell]]]:
    """Return headings and rows of the table of all trials: the best first, trials without a score
    last.
    """
    trials = _all_trials(results)
    parameters = [name for name in results.searched if name in trials.columns]
    named = ["trial", "configuration", "seed"]
    if _FRESH in trials:
        named.append(_FRESH)
    headings = [*named, "state", "score", "step"]
    headings += [*short_names(parameters).values()]
    longest = trials.minutes.max()
    has_minutes = longest >= _SHOWN_MINUTES  # short commands would all show 0.0
    headings += ["minutes", "reason"] if has_minutes else ["reason"]
    ordered = trials.sort_values("score", ascending=results.objective.sign < 0, na_position="last")
    table = []
    for _, row in ordered.iterrows():
        cells = [cell(row[name]) for name in named]
        cells.append((str(row["state"]), str(row["state"]), str(row["state"])))
        cells.append(cell(row["score"], decimals=4))
        cells += [cell(row[name]) for name in ("step", *parameters)]
        if has_minutes:
            cells.append(cell(row["minutes"], decimals=1 if longest >= 10 else 2))
        cells.append((str(row["reason"]), str(row["reason"]), "reason"))
        table.append(cells)
    return headings, table
