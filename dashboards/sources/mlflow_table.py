"""Build a table of MLflow runs, read from a server, a database or a folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from loptune.errors import ConfigError, MissingError
from loptune.mlflow_runs import PARENT_TAG, STATE_TAG
from loptune.yaml_document import nearest

_BOOKKEEPING = ("mlflow.", "loptune.")  # tags that are not settings


@dataclass(frozen=True)
class StoredRun:
    """A run of MLflow."""

    number: str
    name: str
    experiment: str  # name of the experiment
    status: str  # RUNNING, SCHEDULED, FINISHED, FAILED or KILLED
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: frozenset[str]
    history: Callable[[str], Sequence[tuple[int, float]]]  # metric -> (step, value) pairs


def table_of_runs(
    runs: Sequence[StoredRun], where: str, score: str, seed: str, others: Sequence[str] = ()
) -> pd.DataFrame:
    """Return one row per evaluation of each run that has a seed, oldest run first.

    Columns: ``params.*``, ``tags.*``, trial, status, step and score, and experiment if there are
    several; also the metrics ``others``. A run that never logged the score has one row without it;
    the parent of nested runs is then left out. The prefix ``params.`` may be left out of ``score``
    and ``seed``. If ``seed`` is empty and no run has a parameter named seed, the column ``run_id``
    identifies runs, and finished runs without the score are left out.

    Raises:
        ConfigError: no run has the score or the seed.
        MissingError: there are no runs.
    """
    if not runs:
        raise MissingError(
            "there are no runs",
            where,
            "pass another folder, or mlflow:EXPERIMENT with --store",
            code="no-runs",
        )
    if not seed and any("seed" in run.params for run in runs):
        seed = "seed"
    has_several = len({run.experiment for run in runs}) > 1
    by_number = {run.number: run for run in runs}
    parents = {run.tags.get(PARENT_TAG) for run in runs}
    rows: list[dict[str, Any]] = []
    metrics: set[str] = set()
    settings_of_all: set[str] = set()
    for run in runs:
        settings = _settings(run, by_number.get(run.tags.get(PARENT_TAG, "")))
        metrics |= run.metrics
        settings_of_all |= set(settings)
        if seed and seed not in settings and f"params.{seed}" not in settings:
            continue
        curves = _curves(run, score, others)
        has_another_purpose = run.number in parents or (not seed and run.status == "FINISHED")
        if score not in curves and has_another_purpose:
            continue
        columns = {**settings, "trial": run.name, "status": run.tags.get(STATE_TAG, run.status)}
        if not seed:
            columns["run_id"] = run.number
        if has_several:
            columns["experiment"] = run.experiment
        rows += [{**columns, **point} for point in _points(curves, score)]
    if score not in metrics:
        raise ConfigError(
            f"no run has the metric {score}", where, nearest(score, metrics), code="unknown-column"
        )
    if not rows:
        raise ConfigError(
            f"no run has the parameter {seed}",
            where,
            nearest(seed, settings_of_all),
            code="unknown-column",
        )
    return pd.DataFrame(rows)


def _curves(run: StoredRun, score: str, others: Sequence[str]) -> dict[str, dict[int, float]]:
    """Return metric -> step -> value for the metrics that the run logged. If a resumed run logged a
    step twice, the last value is used.
    """
    curves = {}
    for metric in (score, *others):
        values = dict(run.history(metric)) if metric in run.metrics else {}
        if values:
            curves[metric] = values
    return curves


def _points(curves: Mapping[str, Mapping[int, float]], score: str) -> list[dict[str, Any]]:
    """Return the step and the metrics of each evaluation. A run without the score has an evaluation
    at step 0 in which the score is None.
    """
    points: dict[int, dict[str, Any]] = {}
    for metric, values in ({score: {0: None}} | dict(curves)).items():
        for step, value in values.items():
            points.setdefault(step, {"step": step, score: None})[metric] = value
    return list(points.values())


def _settings(run: StoredRun, parent: StoredRun | None) -> dict[str, str]:
    """Return the parameters and tags of a run; a nested run has its parent's parameters, too."""
    settings: dict[str, str] = {}
    for each in (parent, run):
        if each is not None:
            settings |= {f"params.{key}": value for key, value in each.params.items()}
    for key, value in run.tags.items():
        if not key.startswith(_BOOKKEEPING):
            settings[f"tags.{key}"] = value
    return settings
