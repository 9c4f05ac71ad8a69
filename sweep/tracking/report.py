"""The report of a sweep, and its summary in MLflow: a description and metrics of the parent run."""

import json
import math
import time
from dataclasses import asdict
from pathlib import Path

from mlflow.entities import Metric, RunTag

from dashboards.pages.report import write_pages
from dashboards.pictures.judged import judge
from dashboards.pictures.verdict import headline, verdict
from dashboards.queries import read_sweep
from dashboards.statistics.verdict import Tested
from dashboards.sweep import Sweep
from sweep.record.sweep_record import VERDICT_FILE, SweepRecord
from trainer.files import write_atomically
from trainer.metrics.tags import NOTE_TAG
from trainer.tracking.mlflow_store import connect, retry


def write_report(sweep: SweepRecord, uri: str, *, recorded: Sweep | None = None) -> Path:
    """Write the report of a sweep recorded in MLflow, and its verdict to its run there; return the page.

    ``recorded`` is the sweep as the store has it; read if None.

    Raises:
        MissingError: the store has no such sweep.
        StorageError: the store cannot be read or written.
    """
    recorded = recorded or read_sweep(sweep.folder.name, uri)
    path = write_pages(recorded, sweep.folder.report)
    if recorded.confirmation is not None:
        write_atomically(sweep.folder.report / VERDICT_FILE, json.dumps(asdict(headline(recorded))))
    first, *rest = verdict(recorded)
    more = f"Report: `{path}`; charts: `{sweep.command('ui')}`"
    _describe(recorded, "\n\n".join([f"**{first}**", *rest, more]))
    return path


def _describe(sweep: Sweep, text: str) -> None:
    """Give the parent run its description, and the summary as metrics."""
    client, now = connect(sweep.uri), round(time.time() * 1000)
    metrics = [Metric(name, value, now, 0) for name, value in summary(sweep).items()]
    tags = [RunTag(NOTE_TAG, text)]
    retry(lambda: client.log_batch(sweep.run_id, metrics=metrics, tags=tags), sweep.uri)


def summary(sweep: Sweep) -> dict[str, float]:
    """The sweep in numbers; final/score is the mean score of its best configuration."""
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
        if isinstance(found, Tested):
            numbers["sweep/p_value"] = found.p_value
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
