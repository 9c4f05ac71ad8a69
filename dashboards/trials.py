"""The table of a sweep's trials from its MLflow runs, and the trials that pictures with a line per trial show."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dashboards.sweep import CONTROLS, Objective
from trainer.config.variants import variant_name
from trainer.metrics.tags import ARM_TAG, CONFIGURATION_TAG, REASON_TAG, SEED_TAG, STATE_TAG, TRIAL_TAG
from trainer.rules.names import ADVANTAGE_KEY, DEFAULT_LOSS, LOSS_KEY, rule_name

# Parameters that differ between trials without being searched.
_NOT_SEARCHED = ("seed", "tracking.", "checkpoint.", "evaluation.", "data.train")
_STATE_OF_STATUS = {"FINISHED": "COMPLETE", "FAILED": "FAIL", "KILLED": "KILLED", "RUNNING": "RUNNING"}
_WORDS = ("choice", "value", "by")  # kinds of parameters whose values need not be numbers
MAX_LINES = 300


def trials_table(
    runs: list[Any], histories: pd.DataFrame, objective: Objective, searched: tuple[str, ...], kinds: Mapping[str, str]
) -> pd.DataFrame:
    """The trials' table of the child runs; a number that was searched in a range is nan in trials without it."""
    scores, tests = _by_trial(histories, objective.metric), _by_trial(histories, objective.sealed)
    none = pd.Series(dtype=float)
    rows = [
        _trial_row(run, scores.get(trial_name(run), none), tests.get(trial_name(run), none), objective, searched)
        for run in runs
    ]
    columns = ["trial", "configuration", "seed", "state", "reason", "score", "best", "step", "start"]
    columns += ["duration_s", "test", "arm", "algorithm", "alpha", "eta", "variant", "run_id"]
    table = pd.DataFrame(rows, columns=[*columns, *(name for name in searched if name not in columns)])
    for name in searched:
        if kinds.get(name, "choice") not in _WORDS:
            table[name] = table[name].map(_number)
    return table.sort_values("start", kind="stable").reset_index(drop=True)


def _by_trial(histories: pd.DataFrame, metric: str) -> "dict[str, pd.Series[float]]":
    """Trial -> the metric's values by step, ascending."""
    own = histories[histories.metric == metric].sort_values("step").set_index("step")
    return {str(trial): group.value for trial, group in own.groupby("trial")}


def _trial_row(
    run: Any, scores: "pd.Series[float]", tests: "pd.Series[float]", objective: Objective, searched: tuple[str, ...]
) -> dict[str, Any]:
    tags, params = run.data.tags, run.data.params
    trial = trial_name(run)
    state = tags.get(STATE_TAG) or _STATE_OF_STATUS.get(run.info.status, "RUNNING")
    score = run.data.metrics.get("final/score", math.nan)
    if math.isnan(score):
        score = scores.tail(objective.window).mean()
    end = run.info.end_time
    alpha, eta = (_number(params.get(name)) for name in ("algorithm.ar_alpha", "algorithm.lopti_eta"))
    algorithm = rule_name(params.get(ADVANTAGE_KEY, "unknown"), params.get(LOSS_KEY, DEFAULT_LOSS))
    return {
        "trial": trial,
        "configuration": tags.get(CONFIGURATION_TAG, trial),
        "seed": tags.get(SEED_TAG, params.get("seed", "")),
        "state": state,
        "reason": tags.get(REASON_TAG, ""),
        # A failed trial has no score: what it reached before it diverged says nothing about its setting.
        "score": math.nan if state == "FAIL" else score,
        "best": float(getattr(scores, objective.mode)()),
        "step": math.nan if scores.empty else int(scores.index[-1]),
        "start": pd.Timestamp(run.info.start_time, unit="ms", tz="UTC"),
        "duration_s": (end - run.info.start_time) / 1000 if end else math.nan,
        "test": tests.tail(objective.window).mean(),
        "arm": tags.get(ARM_TAG, ""),
        "algorithm": algorithm,
        "alpha": alpha,
        "eta": eta,
        "variant": variant_name(algorithm, alpha, eta, *(params.get(key, off) for key, off in CONTROLS.items())),
        "run_id": run.info.run_id,
        **{name: _value(params.get(name)) for name in searched},
    }


def searched_parameters(params: list[dict[str, str]], kinds: Mapping[str, str]) -> tuple[str, ...]:
    """The parameters that were searched: those of the space, and others that differ between trials."""
    names = dict.fromkeys(name for run in params for name in run)
    # A parameter that only some runs have was not logged by the others (a trial that never started).
    varying = [name for name in names if len({run[name] for run in params if name in run}) > 1]
    return tuple(name for name in varying if name in kinds or not name.startswith(_NOT_SEARCHED))


def trial_name(run: Any) -> str:
    """The identifier of the trial that an MLflow run holds."""
    return str(run.data.tags.get(TRIAL_TAG) or run.info.run_name or run.info.run_id[:8])


def _number(text: Any) -> float:
    try:
        return float(text) if text is not None else math.nan
    except ValueError:
        return math.nan


def _value(text: str | None) -> Any:
    number = _number(text)
    return text if math.isnan(number) else number


def thinned(trials: pd.DataFrame, mode: str) -> pd.DataFrame:
    """At most ``MAX_LINES`` of the trials, in their order: spread evenly over the ranks of their scores.

    The best one is among them; trials without a score rank last, and have their share.
    """
    if len(trials) <= MAX_LINES:
        return trials
    ranked = trials.sort_values("score", ascending=mode == "min", kind="stable", na_position="last").index
    kept = ranked[np.linspace(0, len(ranked) - 1, MAX_LINES).round().astype(int)]
    return trials.loc[trials.index.isin(kept)]


def thinning_note(trials: pd.DataFrame) -> str:
    """A sentence for a picture that leaves trials out; empty where it shows all."""
    if len(trials) <= MAX_LINES:
        return ""
    return f" {MAX_LINES} of {len(trials)} trials are drawn, spread evenly from the best score to the worst."
