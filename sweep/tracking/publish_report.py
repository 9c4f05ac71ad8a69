"""Write a sweep's report from its folder, and its summary to MLflow."""

import math
from collections.abc import Collection
from pathlib import Path

from dashboards.headline import headline, verdict_sentences
from dashboards.pages.report import write_pages
from dashboards.results import Results
from dashboards.sources.stored import RESULTS_FILE, pack
from dashboards.statistics.verdict import Tested
from loptune.files import write_atomically
from loptune.mlflow_runs import NOTE_TAG
from loptune.score import mean
from sweep.record.best import choose_best
from sweep.record.sweep_record import SweepRecord
from sweep.tracking.parent_run import ParentRun

BEST_FILE = "best.yaml"


def write_report(sweep: SweepRecord, results: Results) -> Path:
    """Write a sweep's report and `best.yaml`, and return the path of the page. Without a best
    configuration, `best.yaml` is removed.

    Raises:
        StorageError, OSError: see `write_pages`.
    """
    path = write_pages(results, sweep.folder.report)
    write_atomically(sweep.folder.report / RESULTS_FILE, pack(results))
    best = choose_best(sweep, results).best
    if best is None:
        (sweep.folder.report / BEST_FILE).unlink(missing_ok=True)
    else:
        spec = sweep.spec
        spec.program.save(
            {**best.parameters, "seed": spec.seeds[0]}, sweep.folder.report / BEST_FILE
        )
    return path


def send_report(sweep: SweepRecord, results: Results, parent: ParentRun) -> None:
    """Send the report, the results file, a description and the summary to the sweep's MLflow run.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    folder = sweep.folder
    first, *rest = verdict_sentences(results)
    more = f"Report: `{folder.report / 'report.html'}`; charts: `{sweep.command('ui')}`"
    parent.log_artifact(folder.report)
    parent.describe({NOTE_TAG: "\n\n".join([f"**{first}**", *rest, more])}, summary(results))


def summary(results: Results) -> dict[str, float]:
    """Return the sweep's summary metrics. ``final/score`` is the mean score of the best
    configuration, and ``final/METRIC`` is its mean for each benchmark, each guard and the second
    objective. Once a confirmation has ended, these and ``sweep/gain_over_baseline`` refer to its
    fresh seeds.
    """
    states = [trial.state for trial in results.trials]
    numbers = {
        "sweep/trials_complete": float(states.count("COMPLETE")),
        "sweep/trials_failed": float(states.count("FAIL")),
        f"sweep/{results.device.lower()}_hours": sum(trial.hours for trial in results.trials),
    }
    trials = results.comparable
    best = results.best_of(trials)
    judged = results.verdict
    fresh = results.fresh
    in_rounds = fresh is not None and fresh.rounds is not None
    if fresh is not None and fresh.ended:
        trials = fresh.comparable
        best = headline(results).configuration
        judged = results.fresh_verdict
    trials = trials[trials.configuration == best]
    if len(trials):
        numbers["final/score"] = float(trials.score.mean())
        source = fresh if fresh is not None and fresh.ended else results
        numbers = _other_scores(source, set(trials.trial)) | numbers
    if judged is not None and not results.arms:
        numbers["sweep/gain_over_baseline"] = judged.difference
        if isinstance(judged, Tested) and not in_rounds:  # rounds have boundaries, not p-values
            numbers["sweep/p_value"] = judged.p_value
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _other_scores(results: Results, trials: Collection[str]) -> dict[str, float]:
    """Return the means of the benchmarks, the guards and the second objective over some trials."""
    objective = results.objective
    values: dict[str, list[float]] = {}
    for trial in results.trials:
        if trial.name not in trials:
            continue
        scores = dict(trial.scores)
        if objective.second is not None:
            scores[objective.second] = trial.second
        for metric, score in scores.items():
            if metric != objective.metric:
                values.setdefault(metric.removeprefix("eval/"), []).append(score)
    return {f"final/{metric}": mean(scores) for metric, scores in values.items()}
