"""Reading a sweep back from MLflow, and from nothing else.

The parent run carries the tag ``loptune.sweep``; its children carry ``mlflow.parentRunId`` and say which
trial they are. Tables are pandas frames, so that figures need no MLflow.
"""

import ast
import contextlib
import difflib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dashboards.artifacts import read_solved
from dashboards.sweep import AUDIT, CURVES, Objective, Rounds, Sweep
from dashboards.trials import searched_parameters, thinned, trial_name, trials_table
from trainer.errors import MissingError, StorageError, first_line
from trainer.metrics.recorded_runs import find_runs, search_runs
from trainer.metrics.tags import (
    ADAPTIVE_TAG,
    ARMS_TAG,
    BASELINE_TAG,
    CHANGES_TAG,
    CONFIRMS_TAG,
    PARENT_TAG,
    PLANNED_TAG,
    ROUNDS_TAG,
    RUN_TAG,
    SWEEP_TAG,
)

_BRACKETS = str.maketrans("", "", "[]")
_MAX_CURVE_POINTS = 400  # per trial and metric; more only make the page heavy


def read_sweep(name: str, uri: str) -> Sweep:
    """Everything a report needs of the sweep ``name``.

    Raises:
        MissingError: the store has no such sweep; names the nearest.
        StorageError: the store cannot be read.
    """
    with _opened_store(uri) as client:
        parents = _parents(client)
        named = [run for run in parents if run.data.tags[SWEEP_TAG] == name]
        if not named:
            known = sorted({run.data.tags[SWEEP_TAG] for run in parents})
            near = difflib.get_close_matches(name, known, n=1) or known[:1]
            hint = f"did you mean {near[0]}?" if near else "no sweep was recorded here yet"
            raise MissingError(f"no sweep named {name}", uri, hint)
        return _with_fresh(client, name, uri, parents)


def read_scores(uri: str) -> list[Sweep]:
    """Every sweep of a store, with the scores of its trials and finalists and without their curves.

    Raises:
        StorageError: the store cannot be read.
    """
    with _opened_store(uri) as client:
        parents = _parents(client)
        names = dict.fromkeys(run.data.tags[SWEEP_TAG] for run in parents if CONFIRMS_TAG not in run.data.tags)
        return [_with_fresh(client, name, uri, parents, curves=False) for name in names]


def _with_fresh(client: Any, name: str, uri: str, parents: list[Any], curves: bool = True) -> Sweep:
    """A sweep with its finalists on fresh seeds; of several parent runs of its name the last."""
    parent = [run for run in parents if run.data.tags[SWEEP_TAG] == name][-1]
    sweep = _sweep(client, name, uri, parent, curves=curves)
    for run in parents:
        if run.data.tags.get(CONFIRMS_TAG) == name:
            sweep = replace(sweep, confirmation=_sweep(client, name, uri, run, sweep.searched, curves))
    return sweep


@contextmanager
def _opened_store(uri: str) -> Iterator[Any]:
    """A client of an MLflow store, to read from.

    Raises:
        StorageError: the store cannot be read.
    """
    try:
        yield MlflowClient(uri)
    except MlflowException as error:
        raise StorageError(
            f"cannot read the sweep: {first_line(error)[:200]}", uri, "check that the MLflow store is up"
        ) from error


def _sweep(
    client: Any, name: str, uri: str, parent: Any, searched: tuple[str, ...] | None = None, curves: bool = True
) -> Sweep:
    """A sweep by its parent run; ``searched`` where its trials are to be told apart as those of another sweep."""
    params, tags = parent.data.params, parent.data.tags
    children = find_runs(client, [parent.info.experiment_id], {PARENT_TAG: parent.info.run_id})
    objective = _objective(params)
    histories = _histories(client, children, (objective.metric, objective.sealed, *AUDIT) if curves else ())
    kinds = {key.removeprefix("space."): kind for key, kind in params.items() if key.startswith("space.")}
    if searched is None:
        searched = searched_parameters([run.data.params for run in children], kinds)
    trials = trials_table(children, histories, objective, searched, kinds)
    drawn = set(thinned(trials, objective.mode).trial)  # a query per run and metric: none for what nobody sees
    drawn_curves = _histories(client, [run for run in children if curves and trial_name(run) in drawn], CURVES)
    latest = [
        (trial_name(run), metric, value)
        for run in children
        for metric, value in run.data.metrics.items()
        if metric.startswith(("tokens/", "eval/accuracy/"))
    ]
    return Sweep(
        name,
        uri,
        parent.info.status,
        objective,
        trials,
        pd.concat([histories, drawn_curves], ignore_index=True),
        searched,
        latest=pd.DataFrame(latest, columns=["trial", "metric", "value"]),
        planned=int(tags[PLANNED_TAG]) if PLANNED_TAG in tags else None,
        solved=read_solved(client, _finished(trials, children) if curves else [], objective.metric, objective.window),
        setting=_setting([run.data.params for run in children]),
        adaptive=tags.get(ADAPTIVE_TAG) == "true",
        gpus_per_trial=float(params.get("gpus_per_trial", 0)),
        cpus_per_trial=float(params.get("cpus_per_trial", 1)),
        kinds=kinds,
        run_id=parent.info.run_id,
        baseline=tags.get(BASELINE_TAG),
        arms=tuple(json.loads(tags.get(ARMS_TAG, "[]"))),
        changes=tags.get(CHANGES_TAG, ""),
        rounds=_rounds(tags[ROUNDS_TAG]) if ROUNDS_TAG in tags else None,
    )


def _finished(trials: pd.DataFrame, runs: list[Any]) -> list[tuple[str, str, str]]:
    complete, places = trials[trials.state == "COMPLETE"], {run.info.run_id: run.info.artifact_uri for run in runs}
    return [(trial, run, places[run]) for trial, run in zip(complete.trial, complete.run_id, strict=True)]


def _setting(params: list[dict[str, str]]) -> tuple[str, str]:
    """Model and task of the first trial that recorded them."""
    told = next((run for run in params if "data.train" in run), {})
    sources: list[str] = []
    with contextlib.suppress(ValueError, SyntaxError):  # cut off by the store
        for one in ast.literal_eval(told.get("data.train", "[]")):
            made = f"{one['digits']} digits" if told.get("data.task") == "addition" else f"{one['people']} people"
            sources.append(made.translate(_BRACKETS) if one["source"] == "generated" else one["source"])
    model = told.get("model.name_or_path", "unknown")
    return model, ": ".join(filter(None, (told.get("data.task", "unknown"), ", ".join(sources))))


def _rounds(record: str) -> Rounds:
    told = json.loads(record)
    columns = ["configuration", "seeds", "gain", "low", "high", "decision"]
    standings = pd.DataFrame([one for look in told["looks"] for one in look], columns=columns)
    return Rounds(
        looks=tuple(told["planned"]),
        worthwhile=told["worthwhile"],
        outcome=told["outcome"],
        device_hours=told["device_hours"],
        standings=standings.astype({"low": float, "high": float}),
    )


def _parents(client: Any) -> list[Any]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    # By the tag that its trials have as well, a store would send all of them.
    runs = search_runs(client, experiments, f"tags.`{RUN_TAG}` LIKE 'sweep/%'") if experiments else []
    return [run for run in runs if PARENT_TAG not in run.data.tags]


def _objective(params: dict[str, str]) -> Objective:
    default = Objective()
    mode, _, metric = params.get("objective", f"{default.mode} {default.metric}").partition(" ")
    window = int(params.get("objective.window", default.window))
    worthwhile = float(params.get("objective.worthwhile", default.worthwhile))
    return Objective(metric, "min" if mode == "min" else "max", window, worthwhile)


def _histories(client: Any, runs: list[Any], metrics: tuple[str, ...]) -> pd.DataFrame:
    rows = []
    for run in runs:
        for metric in metrics:
            if metric not in run.data.metrics:
                continue
            # The newest value of a step counts: a run resumed by other means may hold a step twice.
            points = {
                point.step: point.value
                for point in sorted(client.get_metric_history(run.info.run_id, metric), key=lambda p: p.timestamp)
            }
            steps = sorted(points)
            stride = max(1, math.ceil(len(steps) / _MAX_CURVE_POINTS)) if metric in CURVES else 1
            kept = steps[::-1][::stride][::-1]  # the last point stays
            rows += [(trial_name(run), metric, step, points[step]) for step in kept]
    return pd.DataFrame(rows, columns=["trial", "metric", "step", "value"])
