"""The report of a sweep, and its summary in MLflow: a description and metrics of the parent run."""

import math
import time
from pathlib import Path

from dashboards.pages.report import write_report_of
from dashboards.pictures.judged import judge
from dashboards.pictures.verdict import verdict
from dashboards.queries import Sweep, read_sweep
from sweep.record.folder import SweepFolder, command
from sweep.record.parent_run import NOTE_TAG
from sweep.space.spec import SweepSpec
from trainer.tracking.mlflow_store import RUN_TAG, connect, find_runs, patience, retry


def report(folder: SweepFolder, spec: SweepSpec, uri: str, *, png: bool = False) -> Path:
    """Write the report of a sweep recorded in MLflow, and the same verdict to its run there.

    Returns:
        The path of the page.

    Raises:
        MissingError: the store has no such sweep, or PNGs are wanted without a Chrome.
        StorageError: the store cannot be read or written.
    """
    return report_of(read_sweep(folder.name, uri), folder, spec, png=png)


def report_of(sweep: Sweep, folder: SweepFolder, spec: SweepSpec, *, png: bool = False) -> Path:
    """`report` of a sweep that has been read."""
    path: Path = write_report_of(sweep, folder.report, png=png)
    describe(sweep, spec.base.tracking.experiment or spec.name, note(folder, sweep))
    return path


def note(folder: SweepFolder, sweep: Sweep) -> str:
    """The verdict in Markdown, and how to see more."""
    first, *rest = verdict(sweep)
    lines = [
        f"**{first}**",
        *rest,
        f"Report: `{folder.report / 'report.html'}`; charts: `{command('ui', folder)}`",
    ]
    return "\n\n".join(lines)


def describe(sweep: Sweep, experiment: str, text: str) -> None:
    """Give the parent run its description, and the summary as metrics.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    from mlflow.entities import Metric, RunTag

    client, limit = connect(sweep.uri), patience(sweep.uri)
    found = retry(lambda: client.get_experiment_by_name(experiment), sweep.uri, limit)
    assert found is not None, "the sweep was read from this experiment"
    key = {RUN_TAG: f"sweep/{sweep.name}"}
    for run in retry(lambda: find_runs(client, [found.experiment_id], key), sweep.uri, limit)[:1]:
        run_id, now = run.info.run_id, round(time.time() * 1000)
        metrics = [Metric(name, value, now, 0) for name, value in summary(sweep).items()]
        tags = [RunTag(NOTE_TAG, text)]
        retry(lambda: client.log_batch(run_id, metrics=metrics, tags=tags), sweep.uri, limit)  # noqa: B023


def summary(sweep: Sweep) -> dict[str, float]:
    """What a sweep came to, in numbers; final/score is that of its best configuration."""
    states, found = sweep.trials.state.value_counts(), judge(sweep)
    numbers = {
        "sweep/trials_complete": float(states.get("COMPLETE", 0)),
        "sweep/trials_failed": float(states.get("FAIL", 0)),
        f"sweep/{sweep.device.lower()}_hours": float(sweep.device_hours().sum()),
    }
    means = sweep.configurations()["mean"]
    if not means.empty:
        numbers["final/score"] = float(means.max() if sweep.objective.mode == "max" else means.min())
    if found is not None:
        numbers["sweep/gain_over_baseline"] = found.difference
        numbers["sweep/p_value"] = math.nan if found.p_value is None else found.p_value
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
