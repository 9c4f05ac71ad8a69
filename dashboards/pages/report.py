"""A sweep's report: one self-contained HTML file, with the trials as CSV beside it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dashboards.pages.html import cell, render_page, render_table
from dashboards.pictures.confirmation import finalists
from dashboards.pictures.curves import failures, learning_curves, training_health
from dashboards.pictures.decision import decision
from dashboards.pictures.difficulty import by_difficulty
from dashboards.pictures.figures import best_differences, parameter_importance, variants_compared
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
    "What matters": [variants_compared, parameter_importance],
    "How training went": [learning_curves, by_difficulty, training_health, probability_bands, reward_audit, failures],
}
_TOLD = ("tournament", "precision", "failures")  # have sentences alone


def write_pages(sweep: Sweep, out_dir: Path) -> Path:
    """Write ``report.html`` and ``trials.csv``; return the page."""
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / _REPORT_FILE
    write_atomically(out_dir / _TRIALS_FILE, sweep.trials.to_csv(index=False))
    write_atomically(path, report_html(sweep, chapters_of(sweep)))
    return path


def draw(sweep: Sweep) -> list[Picture]:
    """All pictures of a sweep, in the order of the page."""
    return [picture for several in chapters_of(sweep).values() for picture in several]


def chapters_of(sweep: Sweep) -> dict[str, list[Picture]]:
    """Chapter -> its pictures; without those that have nothing to show."""
    drawn = {name: [draw_one(sweep) for draw_one in several] for name, several in _CHAPTERS.items()}
    drawn["What matters"][1:1] = scores_against(sweep)
    return {
        name: [one for one in several if one is not None and (one.figures or one.key in _TOLD)]
        for name, several in drawn.items()
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
    score = (objective.metric, objective.mode)
    told = verdict(sweep)
    return render_page(sweep.name, meta, told, chapters, table, confirmed=gain, score=score)


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
