"""A sweep's report: one self-contained HTML file, with the trials as CSV beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dashboards.pages.html import cell, render_page, render_table
from dashboards.pictures.confirmation import finalists
from dashboards.pictures.curves import failures, learning_curves, training_health
from dashboards.pictures.decision import decision
from dashboards.pictures.figures import best_differences, parameter_importance
from dashboards.pictures.mechanism import probability_bands, reward_audit
from dashboards.pictures.parameters import scores_against
from dashboards.pictures.precision import precision
from dashboards.pictures.theme import Picture
from dashboards.pictures.tournament import tournament
from dashboards.pictures.verdict import headline, verdict
from dashboards.sweep import Sweep
from trainer.config.variants import short_names
from trainer.files import write_atomically

_REPORT_FILE = "report.html"
_TRIALS_FILE = "trials.csv"

# The chapters of a report, in its order. A picture takes a sweep and says in one sentence what it shows; None
# where there is nothing to tell apart.
_CHAPTERS: dict[str, list[Callable[[Sweep], Picture | None]]] = {
    "Verdict": [tournament, best_differences, finalists, decision, precision],
    "What matters": [parameter_importance],
    "How training went": [learning_curves, training_health, probability_bands, reward_audit, failures],
}
# Key of a picture -> the decision that it serves.
_DECIDES = {
    "tournament": "which rule to confirm, and which to tune with more trials",
    "paired": "whether to confirm, and which configuration",
    "finalists": "which configuration to export",
    "decision": "whether to run another round, and which finalist to export",
    "precision": "whether to add seeds or evaluation problems",
    "importance": "which parameters to leave out of the next search",
    "curves": "whether to train longer or to stop earlier",
    "health": "which settings collapse, and should leave the search",
    "bands": "whether AR and Lopti change what they are meant to change",
    "audit": "whether the reward or its limits need repair before the next search",
    "failures": "what to repair before `sweep resume --retry-failed`",
}
_NEXT_SEARCH = "where to search next"  # of a score against a parameter
_TOLD = ("tournament", "precision", "failures")  # have sentences alone


def write_pages(sweep: Sweep, out_dir: Path) -> Path:
    """Write ``report.html`` and ``trials.csv``; return the page."""
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / _REPORT_FILE
    write_atomically(out_dir / _TRIALS_FILE, sweep.trials.to_csv(index=False))
    write_atomically(path, report_html(sweep, chapters_of(sweep)))
    return path


def chapters_of(sweep: Sweep) -> dict[str, list[Picture]]:
    """Chapter -> its pictures; without those that have nothing to show."""
    drawn = {name: [draw_one(sweep) for draw_one in several] for name, several in _CHAPTERS.items()}
    drawn["What matters"][:0] = scores_against(sweep)
    return {
        name: [
            replace(picture, decides=_DECIDES.get(picture.key, _NEXT_SEARCH))
            for picture in pictures
            if picture is not None and (picture.figures or picture.key in _TOLD)
        ]
        for name, pictures in drawn.items()
    }


def report_html(sweep: Sweep, chapters: Mapping[str, Sequence[Picture]]) -> str:
    """The report as one page."""
    objective = sweep.objective
    window = "last evaluation" if objective.window == 1 else f"mean of the last {objective.window} evaluations"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    meta = (
        f"{len(sweep.trials)} trials, {objective.mode} of {objective.metric} ({window}), read from MLflow on "
        f"{now}. The sweep is {sweep.progress}."
    )
    for one in (sweep, sweep.confirmation):
        if one is not None and one.changes:
            meta += f" Its trials are not all comparable: while it ran, files were changed. {one.changes}."
    table, gain = trials_html(sweep), headline(sweep).confirmed
    told = verdict(sweep)
    return render_page(sweep.name, meta, told, chapters, table, confirmed=gain)


def trials_html(sweep: Sweep) -> str:
    """The table of all trials, the best first, failed ones last with their reason."""
    parameters = [name for name in sweep.searched if name in sweep.trials.columns]
    headings = ["trial", "configuration", "seed", "state", "score", "best", "step"]
    headings += [*short_names(parameters).values(), "minutes", "reason"]
    ordered = sweep.trials.sort_values("score", ascending=sweep.objective.mode == "min", na_position="last")
    table = []
    for _, row in ordered.iterrows():
        cells = [cell(row[name]) for name in ("trial", "configuration", "seed")]
        cells.append((str(row["state"]), str(row["state"]), str(row["state"])))
        cells += [cell(row[name], decimals=4) for name in ("score", "best")]
        cells += [cell(row[name]) for name in ("step", *parameters)]
        cells.append(cell(row["duration_s"] / 60, decimals=1))
        cells.append((str(row["reason"]), str(row["reason"]), "reason"))
        table.append(cells)
    return render_table(headings, table)
