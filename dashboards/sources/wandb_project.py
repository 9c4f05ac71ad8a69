"""Read the runs of a project from W&B's server, through its public API."""

import os
from collections.abc import Sequence
from typing import Any

import pandas as pd

from dashboards.sources.json_tables import parsed_number
from dashboards.sources.wandb_tables import expand_mappings
from loptune.errors import ConfigError, MissingError, StorageError, first_line
from loptune.extras import require
from loptune.yaml_document import nearest

# maximum number of values per run and metric that the server returns; of more values, it returns a
# sample
_MAX_POINTS = 10_000


def read_project(
    project: str, score: str, max_points: int = _MAX_POINTS, others: Sequence[str] = ()
) -> pd.DataFrame:
    """Return one row per logged value of the score of each run, and one row for a run without any.

    Columns: ``Name``, ``ID`` and ``State`` as in W&B's table of runs, ``step``, the score, and
    ``config.KEY`` for each setting, with dots for nested settings. If a run has the score only in
    its summary, the summary is its only value.

    Args:
        project: ``ENTITY/PROJECT``, or ``PROJECT`` of the default entity.
        score: name of the metric.
        max_points: maximum number of values of a run that W&B returns without sampling.
        others: further metrics, which become columns.

    Raises:
        ConfigError: no run has the score, or a run has so many values that W&B samples them.
        MissingError: wandb is not installed, or the project has no runs.
        StorageError: the server rejects the request, or does not respond.
    """
    place = f"wandb:{project}"
    require("wandb", place)
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    rows: list[dict[str, Any]] = []
    logged: set[str] = set()
    try:
        for run in wandb.Api().runs(project, per_page=100, lazy=False):
            logged |= set(run.summary_metrics)
            rows += _with_others(_rows(run, score, max_points), run, others, max_points)
    except (wandb.Error, ValueError, OSError) as error:  # ValueError: no such project
        raise StorageError(
            f"cannot read the project: {first_line(error)[:200]}",
            place,
            "check the name ENTITY/PROJECT, run wandb login, or export the table of runs as CSV",
            code="unreadable-project",
        ) from None
    if not rows:
        raise MissingError(
            "the project has no runs", place, "pass another project: wandb:ENTITY/PROJECT",
            code="no-runs",
        )  # fmt: skip
    if all(row.get(score) is None for row in rows):
        raise ConfigError(
            f"no run has the metric {score}", place, nearest(score, logged), code="unknown-column"
        )
    return expand_mappings(pd.DataFrame(rows))


def _with_others(
    rows: list[dict[str, Any]], run: Any, others: Sequence[str], max_points: int
) -> list[dict[str, Any]]:
    """Return a run's rows with further metrics, which may be logged at other steps.

    Raises:
        ConfigError: W&B would return only a sample of their values.
    """
    by_step = {row["step"]: row for row in rows}
    settings = {key: rows[0][key] for key in ("Name", "ID", "State", "config")}
    for metric in others:
        for point in _points(run, metric, max_points):
            row = by_step.setdefault(point["_step"], {**settings, "step": point["_step"]})
            row[metric] = parsed_number(point[metric])
        if metric in run.summary_metrics and not any(metric in row for row in by_step.values()):
            rows[0][metric] = parsed_number(run.summary_metrics.get(metric))
    return list(by_step.values())


def _points(run: Any, metric: str, max_points: int) -> list[dict[str, Any]]:
    """Return the logged values of a metric with their steps.

    Raises:
        ConfigError: W&B would return only a sample of them.
    """
    points: list[dict[str, Any]] = run.history(samples=max_points, keys=[metric], pandas=False)
    if len(points) >= max_points:
        raise ConfigError(
            f"run {run.name} has at least {max_points:,} values of {metric}, and W&B returns only "
            "a sample of them",
            f"run {run.name}",
            "choose an evaluation metric, which is logged less often, or export it as CSV",
            code="sampled-history",
        )
    return points


def _rows(run: Any, score: str, max_points: int) -> list[dict[str, Any]]:
    """Return the rows of one run.

    Raises:
        ConfigError: W&B would return only a sample of its values.
    """
    settings = {"Name": run.name, "ID": run.id, "State": run.state, "config": run.config}
    rows = []
    for point in _points(run, score, max_points):
        rows.append({**settings, "step": point["_step"], score: parsed_number(point[score])})
    if rows:
        return rows
    return [{**settings, "step": None, score: parsed_number(run.summary_metrics.get(score))}]
