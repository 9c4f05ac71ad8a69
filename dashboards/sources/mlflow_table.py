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
    several; also the metrics ``others``. A run that never logged the score has one row without it.
    The prefix ``params.`` may be left out of ``score`` and ``seed``. If ``seed`` is empty and no
    run has a parameter named seed, the column ``run_id`` identifies runs, and finished runs without
    the score are left out.

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
        settings: dict[str, Any] = _settings(run, by_number.get(run.tags.get(PARENT_TAG, "")))
        metrics |= run.metrics
        settings_of_all |= set(settings)
        if seed and seed not in settings and f"params.{seed}" not in settings:
            continue
        if not seed:
            settings["run_id"] = run.number
        settings["trial"] = run.name
        settings["status"] = run.tags.get(STATE_TAG, run.status)
        if has_several:
            settings["experiment"] = run.experiment
        points = run.history(score) if score in run.metrics else ()
        other = run.number in parents or (not seed and run.status == "FINISHED")
        if not points and other:
            continue  # a parent of nested runs, or an unrelated run
        # a resumed run repeats steps: keep the last value
        values: dict[int, float | None] = dict(points)
        rows_of_run: dict[int, dict[str, Any]] = {}
        for step, value in (values or {0: None}).items():
            rows_of_run[step] = {**settings, "step": step, score: value}
        for other_metric in others:
            for step, value in run.history(other_metric) if other_metric in run.metrics else ():
                row = rows_of_run.setdefault(step, {**settings, "step": step, score: None})
                row[other_metric] = value
        rows += rows_of_run.values()
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
