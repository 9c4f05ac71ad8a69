"""Reading a sweep back from MLflow, and from nothing else.

The parent run carries the tag ``loptune.sweep``; its children carry ``mlflow.parentRunId`` and say which
trial they are. Tables are pandas frames, so that figures need no MLflow.
"""

import difflib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from dashboards.labels import configuration_labels
from dashboards.solved import Solved, read_solved
from dashboards.thinning import thinned
from trainer.config.variants import rule_name, variant_name
from trainer.errors import MissingError, StorageError, first_line
from trainer.metrics.declared import METRICS

CURVES = (
    "policy/kl",
    "policy/entropy",
    "policy/clip_fraction",
    "rollout/completion_length",
    "optim/grad_norm",
)
AUDIT = ("reward/format_failures", "reward/timeouts", "reward/errors")
TEST_SET = "test"  # the sealed problems: only runs that confirm a sweep are evaluated on them
MAX_CURVE_POINTS = 400  # per trial and metric; more would only make the page heavy

# Parameters that differ between trials without being searched.
_NOT_SEARCHED = ("seed", "tracking.", "checkpoint.", "evaluation.", "data.train")
# Keys of the controls, in the order of `variant_name`, and the value that is off.
CONTROLS = {
    "algorithm.token_filter": "none",
    "algorithm.lopti_split": "probability",
    "algorithm.lopti_order": "low_first",
}
_STATE_OF_STATUS = {"FINISHED": "COMPLETE", "FAILED": "FAIL", "KILLED": "KILLED", "RUNNING": "RUNNING"}
_PAGE = 1000


@dataclass(frozen=True)
class Objective:
    """What the sweep optimised: the mean of the last ``window`` values of ``metric``."""

    metric: str = "eval/accuracy"
    mode: Literal["max", "min"] = "max"
    window: int = 3
    worthwhile: float = 0.01  # smallest gain that matters

    @property
    def sealed(self) -> str:
        """The same metric on the sealed problems."""
        return "/".join([*self.metric.split("/")[:2], TEST_SET])


@dataclass(frozen=True)
class Decision:
    """Finalists in rounds of fresh seeds: what the deciding sweep recorded, and its trials."""

    looks: tuple[int, ...]  # planned, in seeds
    better: tuple[float, ...]  # at each look, the t from which a finalist is better
    futile: tuple[float, ...]  # and the t of (worthwhile - gain) from which it is given up
    worthwhile: float
    outcome: str  # better, not better, undecided or open
    device_hours: float  # in training steps and evaluations
    standings: pd.DataFrame  # configuration, seeds, gain, low, high, decision: a row per look and finalist
    fresh: "Sweep"  # under the numbers of the sweep that is decided


def column_of(parameter: str) -> str:
    """The column of the trials' table that holds a searched parameter."""
    return {"algorithm.ar_alpha": "alpha", "algorithm.lopti_eta": "eta"}.get(parameter, parameter)


@dataclass(frozen=True)
class Sweep:
    """A sweep as two tables.

    ``trials`` has one row per trial, in the order of their start: trial, configuration, seed, state
    (COMPLETE, PRUNED, FAIL, KILLED or RUNNING), reason, score (NaN for a failed trial), best (of the objective
    metric), step (last evaluated), start (UTC), duration_s (NaN while running), test (score on the sealed
    problems, NaN without), algorithm, alpha, eta, variant, run_id, a column for every name in ``searched``, and
    label: its configuration in words.

    ``histories`` has trial, metric, step, value, for the objective metric, ``CURVES`` and ``AUDIT``; ``latest``
    has trial, metric, value, for the last ``tokens/*`` and ``eval/accuracy/*`` of every trial.
    """

    name: str
    uri: str
    status: str
    objective: Objective
    trials: pd.DataFrame
    histories: pd.DataFrame
    searched: tuple[str, ...]
    latest: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["trial", "metric", "value"]))
    planned: int | None = None  # trials; None where the sweep did not record it
    gpus_per_trial: float = 0
    cpus_per_trial: float = 1
    fixed: Mapping[str, str] = field(default_factory=dict)  # parameters that all trials share
    solved: Mapping[str, Solved] = field(default_factory=dict)  # trial -> which problems; where recorded
    decision: Decision | None = None  # finalists in rounds of fresh seeds
    adaptive: bool = False  # whether scores on these seeds decided what was tried, or how long
    confirmation: "Sweep | None" = None  # the finalists on fresh seeds, under their numbers in this sweep
    full: "Sweep | None" = None  # the same with full weights, where this sweep trained adapters
    two_stages: bool = False  # whether its space says how finalists are trained in full
    kinds: Mapping[str, str] = field(default_factory=dict)  # searched parameter -> e.g. loguniform
    baseline: str | None = None  # configuration listed first under `baselines`; None where none is listed

    def __post_init__(self) -> None:
        labels = configuration_labels(self.trials, self.searched)
        object.__setattr__(self, "trials", self.trials.assign(label=labels))

    @property
    def varied(self) -> tuple[str, ...]:
        """The searched parameters that have more than one value so far."""
        return tuple(name for name in self.searched if self.trials[column_of(name)].nunique() > 1)

    @property
    def ended(self) -> int:
        """Trials that came to an end."""
        return int(self.trials.state.isin(["COMPLETE", "PRUNED", "FAIL"]).sum())

    @property
    def progress(self) -> str:
        """How far the sweep is, in words; by its trials, because a report is also written while it closes."""
        if self.planned is not None and self.ended >= self.planned:
            return f"finished: all {self.planned} planned trials have ended"
        planned = f" of {self.planned} planned" if self.planned is not None else ""
        if self.status == "RUNNING":
            return f"running: {self.ended}{planned} trials have ended"
        return f"{'stopped' if planned else self.status.lower()}: {self.ended}{planned} trials have ended"

    @property
    def device(self) -> str:
        """What its cost is counted in."""
        return "GPU" if self.gpus_per_trial else "CPU"

    def device_hours(self) -> "pd.Series[float]":
        """Hours of a trial's devices from its start to its end; NaN while it runs."""
        return self.trials.duration_s / 3600 * (self.gpus_per_trial or self.cpus_per_trial)

    def complete(self) -> pd.DataFrame:
        """The trials that trained to their end and have a score."""
        return self.trials[(self.trials.state == "COMPLETE") & self.trials.score.notna()]

    def configurations(self) -> pd.DataFrame:
        """One row per configuration: mean, low, high, seeds and the parameters.

        Only configurations that are complete on as many seeds as any: where a hard seed failed or has not run
        yet, the mean of the others would pass for a better setting.
        """
        complete = self.complete()
        if complete.empty:
            return pd.DataFrame(columns=[*complete.columns, "mean", "low", "high", "seeds"])
        grouped = complete.groupby("configuration", sort=False)
        table = grouped.first()
        table["mean"], table["low"], table["high"] = (
            grouped.score.mean(),
            grouped.score.min(),
            grouped.score.max(),
        )
        table["seeds"] = grouped.score.count()
        most = int(table["seeds"].max())
        return table.loc[table["seeds"] == most].reset_index()


def read_sweep(name: str, uri: str) -> Sweep:
    """Everything a report needs of the sweep ``name``.

    Raises:
        MissingError: the store has no such sweep; names the nearest.
        StorageError: the store cannot be read.
    """
    with opened_store(uri) as client:
        parents = _parents(client)
        named = [run for run in parents if run.data.tags["loptune.sweep"] == name]
        if not named:
            known = sorted({run.data.tags["loptune.sweep"] for run in parents})
            near = difflib.get_close_matches(name, known, n=1) or known[:1]
            hint = f"did you mean {near[0]}?" if near else "no sweep was recorded here yet"
            raise MissingError(f"no sweep named {name}", uri, hint)
        parent = named[-1]
        sweep = _sweep(client, name, uri, parent)
        for run in parents:
            if run.data.tags.get("loptune.confirms") == name:
                fresh = _sweep(client, name, uri, run, sweep.searched)
                fresh = _renumbered(fresh, run)
                if run.data.tags.get("loptune.weights") == "full":
                    sweep = replace(sweep, full=fresh)
                else:
                    sweep = replace(sweep, confirmation=fresh)
            if run.data.tags.get("loptune.decides") == name and "loptune.decision" in run.data.tags:
                sweep = replace(sweep, decision=_decision(_sweep(client, name, uri, run, sweep.searched), run))
        return sweep


@contextmanager
def opened_store(uri: str) -> Iterator[Any]:
    """A client of an MLflow store, to read from.

    Raises:
        StorageError: the store cannot be read.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield _client(uri)
    except MlflowException as error:
        raise StorageError(
            f"cannot read the sweep: {first_line(error)[:200]}", uri, "check that the MLflow store is up"
        ) from error


def _sweep(client: Any, name: str, uri: str, parent: Any, searched: tuple[str, ...] | None = None) -> Sweep:
    """A sweep by its parent run; ``searched`` where its trials are to be told apart as those of another sweep."""
    params = parent.data.params
    condition = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    children = _search(client, [parent.info.experiment_id], condition)
    objective = _objective(params)
    histories = _histories(client, children, (objective.metric, objective.sealed, *AUDIT))
    kinds = {key.removeprefix("space."): kind for key, kind in params.items() if key.startswith("space.")}
    if searched is None:
        searched = searched_parameters([run.data.params for run in children], kinds)
    trials = trials_table(children, histories, objective, searched)
    drawn = set(thinned(trials, objective.mode).trial)  # a query per run and metric: none for what nobody sees
    curves = _histories(client, [run for run in children if _trial_name(run) in drawn], CURVES)
    latest = [
        (_trial_name(run), metric, value)
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
        pd.concat([histories, curves], ignore_index=True),
        searched,
        latest=pd.DataFrame(latest, columns=["trial", "metric", "value"]),
        planned=_planned(parent),
        solved=read_solved(client, _finished(trials, children), objective.metric, objective.window),
        adaptive=parent.data.tags.get("loptune.adaptive") == "true",
        two_stages=parent.data.tags.get("loptune.two_stages") == "true",
        gpus_per_trial=float(params.get("gpus_per_trial", 0)),
        cpus_per_trial=float(params.get("cpus_per_trial", 1)),
        fixed=_fixed([run.data.params for run in children], searched),
        kinds=kinds,
        baseline=parent.data.tags.get("loptune.baseline"),
    )


def _finished(trials: pd.DataFrame, runs: list[Any]) -> list[tuple[str, str, str]]:
    complete, places = trials[trials.state == "COMPLETE"], {run.info.run_id: run.info.artifact_uri for run in runs}
    return [(trial, run, places[run]) for trial, run in zip(complete.trial, complete.run_id, strict=True)]


def _finalists(parent: Any) -> dict[str, str]:
    """Number in a sweep of finalists -> number in the sweep they come from."""
    numbers = filter(None, parent.data.tags.get("loptune.finalists", "").split(","))
    return {str(place): number for place, number in enumerate(numbers)}


def _renumbered(sweep: Sweep, parent: Any) -> Sweep:
    """A sweep of finalists with the numbers that its configurations have in the sweep they come from."""
    finalists = _finalists(parent)
    names = [finalists.get(name, name) for name in sweep.trials.configuration]
    baseline = None if sweep.baseline is None else finalists.get(sweep.baseline)
    return replace(sweep, trials=sweep.trials.assign(configuration=names), baseline=baseline)


def _decision(sweep: Sweep, parent: Any) -> Decision:
    record, finalists = json.loads(parent.data.tags["loptune.decision"]), _finalists(parent)
    standings = [(finalists[finalist], *numbers) for look in record["looks"] for finalist, *numbers in look]
    columns = ["configuration", "seeds", "gain", "low", "high", "decision"]
    design = record["design"]
    return Decision(
        looks=tuple(design["looks"]),
        better=tuple(design["better"]),
        futile=tuple(design["futile"]),
        worthwhile=design["worthwhile"],
        outcome=record["outcome"],
        device_hours=record["device_hours"],
        standings=pd.DataFrame(standings, columns=columns).astype({"low": float, "high": float}),
        fresh=_renumbered(sweep, parent),
    )


def _planned(parent: Any) -> int | None:
    tag, params = parent.data.tags.get("loptune.planned_trials"), parent.data.params
    if tag is not None:
        return int(tag)
    if "configurations" in params and "seeds" in params:
        return int(params["configurations"]) * len(params["seeds"].split(","))
    return None


def trials_table(
    runs: list[Any], histories: pd.DataFrame, objective: Objective, searched: tuple[str, ...]
) -> pd.DataFrame:
    """The trials' table of the child runs."""
    scores, tests = _by_trial(histories, objective.metric), _by_trial(histories, objective.sealed)
    none = pd.Series(dtype=float)
    rows = [
        _trial_row(run, scores.get(_trial_name(run), none), tests.get(_trial_name(run), none), objective, searched)
        for run in runs
    ]
    columns = ["trial", "configuration", "seed", "state", "reason", "score", "best", "step", "start"]
    columns += ["duration_s", "test", "algorithm", "alpha", "eta", "variant", "run_id"]
    table = pd.DataFrame(rows, columns=[*columns, *(name for name in searched if name not in columns)])
    return table.sort_values("start", kind="stable").reset_index(drop=True)


def _by_trial(histories: pd.DataFrame, metric: str) -> "dict[str, pd.Series[float]]":
    """Trial -> the metric's values by step, ascending."""
    own = histories[histories.metric == metric].sort_values("step").set_index("step")
    return {str(trial): group.value for trial, group in own.groupby("trial")}


def _trial_row(
    run: Any,
    scores: "pd.Series[float]",
    tests: "pd.Series[float]",
    objective: Objective,
    searched: tuple[str, ...],
) -> dict[str, Any]:
    tags, params = run.data.tags, run.data.params
    trial = _trial_name(run)
    state = tags.get("loptune.state") or _STATE_OF_STATUS.get(run.info.status, "RUNNING")
    score = run.data.metrics.get("final/score", math.nan)
    if math.isnan(score):
        score = scores.tail(objective.window).mean()
    end = run.info.end_time
    alpha, eta = (_number(params.get(name)) for name in ("algorithm.ar_alpha", "algorithm.lopti_eta"))
    # Runs recorded before the losses had names call the estimator algorithm.name.
    advantage = params.get("algorithm.advantage") or params.get("algorithm.name", "unknown")
    algorithm = rule_name(advantage, params.get("algorithm.loss", "clipped"))
    return {
        "trial": trial,
        "configuration": tags.get("loptune.configuration", trial),
        "seed": tags.get("loptune.seed", params.get("seed", "")),
        "state": state,
        "reason": tags.get("loptune.reason", ""),
        # A failed trial has no score: what it reached before it diverged says nothing about its setting.
        "score": math.nan if state == "FAIL" else score,
        "best": float(getattr(scores, objective.mode)()),
        "step": math.nan if scores.empty else int(scores.index[-1]),
        "start": pd.Timestamp(run.info.start_time, unit="ms", tz="UTC"),
        "duration_s": (end - run.info.start_time) / 1000 if end else math.nan,
        "test": tests.tail(objective.window).mean(),
        "algorithm": algorithm,
        "alpha": alpha,
        "eta": eta,
        "variant": variant_name(algorithm, alpha, eta, *(params.get(key, off) for key, off in CONTROLS.items())),
        "run_id": run.info.run_id,
        **{name: _value(params.get(name)) for name in searched},
    }


def _client(uri: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow import MlflowClient

    return MlflowClient(uri)


def _parents(client: Any) -> list[Any]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    # By the tag that its trials have as well, a store would send all of them.
    runs = _search(client, experiments, "tags.`loptune.run` LIKE 'sweep/%'") if experiments else []
    return [run for run in runs if "mlflow.parentRunId" not in run.data.tags]


def _search(client: Any, experiments: list[str], condition: str) -> list[Any]:
    found: list[Any] = []
    token = None
    while True:
        page = client.search_runs(
            experiments, condition, max_results=_PAGE, order_by=["start_time ASC"], page_token=token
        )
        found.extend(page)
        token = page.token
        if not token:
            return found


def _objective(params: dict[str, str]) -> Objective:
    default = Objective()
    mode, _, metric = params.get("objective", f"{default.mode} {default.metric}").partition(" ")
    metric, mode = params.get("objective.metric", metric), params.get("objective.mode", mode)
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
            stride = max(1, math.ceil(len(steps) / MAX_CURVE_POINTS)) if metric in CURVES else 1
            kept = steps[::-1][::stride][::-1]  # the last point stays
            rows += [(_trial_name(run), metric, step, points[step]) for step in kept]
    return pd.DataFrame(rows, columns=["trial", "metric", "step", "value"])


def searched_parameters(params: list[dict[str, str]], kinds: Mapping[str, str]) -> tuple[str, ...]:
    """The parameters that were searched: those of the space, and others that differ between trials."""
    names = dict.fromkeys(name for run in params for name in run)
    # A parameter that only some runs have was not logged by the others (a trial that never started).
    varying = [name for name in names if len({run[name] for run in params if name in run}) > 1]
    return tuple(name for name in varying if name in kinds or not name.startswith(_NOT_SEARCHED))


def _fixed(params: list[dict[str, str]], searched: tuple[str, ...]) -> dict[str, str]:
    found = {name: value for run in params for name, value in run.items()}
    return {
        name: value
        for name, value in found.items()
        if name not in searched and not name.startswith(("seed", "tracking.", "checkpoint."))
    }


def _trial_name(run: Any) -> str:
    return str(run.data.tags.get("loptune.trial") or run.info.run_name or run.info.run_id[:8])


def _number(text: str | None) -> float:
    try:
        return float(text) if text is not None else math.nan
    except ValueError:
        return math.nan


def _value(text: str | None) -> Any:
    number = _number(text)
    return text if math.isnan(number) else number


def unit_of(metric: str) -> str:
    """The declared unit of a metric, for an axis; empty where it is a plain number."""
    declared = METRICS.get(metric)
    return declared.unit if declared is not None and declared.unit != "1" else ""
