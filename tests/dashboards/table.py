"""Results of ten trials, and ways to change them by their tables."""

import math
from dataclasses import fields, replace
from typing import Any

import pandas as pd

from dashboards.pictures.theme import Picture
from dashboards.results import Results
from dashboards.statistics.difference import Difference, Outcome
from dashboards.trial import Curve, Objective, TrialRecord

ALPHA = "algorithm.ar_alpha"
ETA = "algorithm.lopti_eta"
SCORES = [  # configuration, algorithm, alpha, eta, scores of seeds 0 and 1
    ("0", "grpo", 0.0, 0.0, 0.50, 0.60),
    ("1", "grpo", 0.3, 0.0, 0.70, 0.80),
    ("2", "grpo", 0.0, 0.5, 0.55, 0.55),
    ("3", "rpp", 0.0, 0.0, 0.40, 0.50),
    ("4", "rpp", 0.3, 0.5, 0.45, math.nan),
]


def results_of(mode: str = "max") -> Results:
    """Five configurations, two seeds; the last trial failed."""
    trials = []
    for configuration, algorithm, alpha, eta, *scores in SCORES:
        rule = " + ".join([algorithm, *["AR"] * (alpha > 0), *["Lopti"] * (eta > 0)])
        for seed, score in enumerate(scores):
            failed = math.isnan(score)
            trial = TrialRecord(
                name=f"{configuration}-s{seed}",
                configuration=configuration,
                seed=str(seed),
                state="FAIL" if failed else "COMPLETE",
                score=score,
                parameters={"algorithm.advantage": algorithm, ALPHA: alpha, ETA: eta},
                algorithm=algorithm,
                rule=rule,
                reason="diverged <b>" if failed else "",
                step=20,
                hours=0.025,
                curves={
                    "eval/accuracy": Curve((0, 20), (0.3, 0.1 if failed else score)),
                    "policy/kl": Curve((10, 20), (0.02, 0.04)),
                },
            )
            trials.append(trial)
    objective = Objective("eval/accuracy", "min" if mode == "min" else "max", 1)
    searched = ("algorithm.advantage", ALPHA, ETA)
    return Results("demo", objective, tuple(trials), searched, baseline="0")


def shown(picture: Picture | None) -> Picture:
    """A picture that must be there."""
    assert picture is not None
    return picture


def with_trials(results: Results, table: pd.DataFrame, **changes: Any) -> Results:
    """The results with the trials of a changed `TrialSet.table`, and with other changes."""
    simple = {field.name for field in fields(TrialRecord)} - {
        "name",
        "time",
        "by_settings",
        "total_steps",
        "parameters",
        "curves",
        "latest",
        "scores",
        "costs",
        "solved",
        "task",
    }
    before = {trial.name: trial for trial in results.trials}
    trials = []
    for row in table.to_dict("records"):
        parameters = {
            key: value
            for key, value in row.items()
            if key not in simple | {"trial", "label", "minutes"}
        }
        kept = before.get(row["trial"], TrialRecord(row["trial"], "", ""))
        values = {key: row[key] for key in simple}
        trials.append(replace(kept, name=row["trial"], parameters=parameters, **values))
    return replace(results, trials=tuple(trials), **changes)


def interim(
    finalist: str,
    seeds: int,
    gain: float,
    interval: tuple[float, float] | None,
    outcome: Outcome,
    baseline: str = "0",
) -> Difference:
    """The result of a finalist at an interim analysis."""
    return Difference(
        configuration=finalist,
        baseline=baseline,
        gain=gain,
        median=gain,
        seeds=seeds,
        interval=interval,
        outcome=outcome,
    )
