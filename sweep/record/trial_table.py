"""A trial in words and as a row: in event lines, tables, ``--json`` and `load_results`."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dashboards.trial import TrialRecord
from loptune.errors import shortened
from loptune.terminal.table import number, print_table
from sweep.space.arms import arm_key
from sweep.space.points import Parameters
from sweep.space.spec import SweepSpec

_MAX_VALUE = 60  # maximum length of a shown value; a searched system prompt may be much longer


def table_row(trial: TrialRecord) -> dict[str, Any]:
    """Return a trial as a row of `sweep status --json` and `load_results`, with None for missing
    values.
    """
    return {
        "trial": trial.name,
        "configuration": int(trial.configuration),
        "seed": int(trial.seed),
        "state": trial.state,
        "step": recorded_steps(trial),
        "total_steps": trial.total_steps,
        "score": None if math.isnan(trial.score) else trial.score,
        "second": None if math.isnan(trial.second) else trial.second,
        "reason": trial.reason,
        "parameters": dict(trial.parameters),
    }


def print_trials(
    trials: Iterable[TrialRecord], spec: SweepSpec, points: Mapping[str, Parameters]
) -> None:
    """Print the trials of a sweep; ``points`` has each configuration's parameters with switches."""
    second = spec.objective.second
    rows = []
    for trial in trials:
        parameters = setting_text(spec, trial.parameters, points.get(trial.configuration))
        scores = [score_text(trial)]
        if second is not None:
            scores.append("" if math.isnan(trial.second) else number(trial.second))
        rows.append([trial.name, trial.state, step_text(trial), *scores, parameters, trial.reason])
    scores = ["score"] if second is None else ["score", second.metric]
    print_table(["trial", "state", "step", *scores, "parameters", "reason"], rows)


def setting_text(
    spec: SweepSpec, resolved: Mapping[str, Any], point: Mapping[str, Any] | None = None
) -> str:
    """Return a configuration on one line: ``grpo ar_alpha=0.3``.

    The update rule is named as in reports and runs: after its arm (if ``point`` includes the
    switches), or else after its advantage and loss. Of an arm, only the settings that are tuned
    within it are shown, because its name implies the others.
    """
    rest = dict(resolved)
    name = ""
    if point is not None and (arm := arm_key(spec)) is not None:
        name = str(point.get(arm, ""))
        for key, parameter in spec.parameters.items():
            if key not in point or arm in (parameter.by or {}):
                rest.pop(key, None)
    if any(key in rest for key in spec.program.rule_keys):
        name = name or spec.program.rule_of(dict(resolved))[0]
    if name:
        for key in spec.program.rule_keys:
            rest.pop(key, None)
    return " ".join(part for part in (name, parameter_text(rest)) if part)


def parameter_text(parameters: Mapping[str, Any]) -> str:
    """Return parameters on one line: ``advantage=grpo ar_alpha=0.3``. Keys with the same last part
    keep their sections: ``actor.optim.lr=1e-06 critic.optim.lr=1e-05``.
    """
    names = unambiguous_names(parameters)
    return " ".join(f"{names[key]}={value_text(value)}" for key, value in parameters.items())


def unambiguous_names(keys: Iterable[str]) -> dict[str, str]:
    """Map each dotted key to its last part, or to the whole key if another key has the same last
    part.
    """
    last_parts = {key: key.rsplit(".", 1)[-1] for key in keys}
    count = Counter(last_parts.values())
    return {key: last if count[last] == 1 else key for key, last in last_parts.items()}


def value_text(value: Any) -> str:
    """Return a parameter's value on one line of at most ``_MAX_VALUE`` characters, with the same
    number of digits as in labels.
    """
    text = f"{value:.3g}" if isinstance(value, float) else number(value)
    return shortened(" ".join(text.split()), _MAX_VALUE)


def score_text(trial: TrialRecord) -> str:
    """Return a trial's score as text; empty without a score."""
    return "" if math.isnan(trial.score) else number(trial.score)


def recorded_steps(trial: TrialRecord) -> int:
    """Return the last recorded training step; 0 before the first."""
    return 0 if math.isnan(trial.step) else int(trial.step)


def step_text(trial: TrialRecord) -> str:
    """Return a trial's progress: ``20/60``; ``20`` if its length is unknown; empty if it waits and
    has not trained.
    """
    step = recorded_steps(trial)
    if step == 0 and trial.state == "WAITING":
        return ""
    if trial.total_steps:
        return f"{step}/{trial.total_steps}"
    return str(step)
