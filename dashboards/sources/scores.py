"""Judge runs by several scores: score names, their composite, and guard metrics."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from dashboards.results import Results
from dashboards.sources.conditions import equalities, split_list
from dashboards.sources.directions import usual_direction
from dashboards.sources.names import find_column
from dashboards.statistics.composites import Composite
from dashboards.trial import Curve, Mode, TrialRecord, joint_state
from loptune.errors import ConfigError, joined
from loptune.yaml_document import nearest

_KINDS = ("mean", "iqm")
_MODES: dict[str, Mode] = {"min": "min", "max": "max"}


@dataclass(frozen=True)
class GuardSpec:
    """A guard as given on the command line."""

    metric: str
    margin: float
    mode: Mode


@dataclass(frozen=True)
class SecondSpec:
    """A second objective as given on the command line."""

    metric: str
    mode: Mode


def score_names(text: str | Sequence[str], table: pd.DataFrame) -> list[str]:
    """Return the score names. A string is split at commas, except inside a column name such as
    lm-eval's ``acc,none``.
    """
    if not isinstance(text, str):
        return list(text)
    if "," not in text or find_column(text, table) is not None:
        return [text]
    parts = [part.strip() for part in text.split(",")]
    names = []
    start = 0
    while start < len(parts):
        end = start + 1
        for longest in range(len(parts), start + 1, -1):
            if find_column(",".join(parts[start:longest]), table) is not None:
                end = longest
                break
        names.append(",".join(parts[start:end]))
        start = end
    return list(dict.fromkeys(name for name in names if name))


def composite_of(text: str, names: Sequence[str]) -> Composite:
    """Return the composite for ``mean``, ``iqm`` or ``NAME=WEIGHT,...``.

    Raises:
        ConfigError: the text is not a composite, or weights and scores do not match.
    """
    if text in _KINDS:
        return Composite(text)
    if "=" not in text:
        raise ConfigError(
            f"{text} is not a composite",
            "--composite",
            "write mean, iqm, or a weight for every score: "
            + ",".join(f"{name}=1" for name in names),
            code="unknown-composite",
        )
    weights = {}
    for name, value in equalities(text).items():
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = math.nan
    wrong = [name for name in weights if name not in names]
    if wrong or set(weights) != set(names):
        missing = wrong or [name for name in names if name not in weights]
        raise ConfigError(
            f"weights and scores do not match: {missing[0]}",
            "--composite",
            nearest(missing[0], names) if wrong else f"add {missing[0]}=WEIGHT",
            code="other-weights",
        )
    if not all(weight >= 0 for weight in weights.values()) or not sum(weights.values()) > 0:
        raise ConfigError(
            "weights must be at least 0, and one must be positive",
            "--composite",
            "write them as NAME=WEIGHT",
            code="no-weight",
        )
    return Composite("weights", weights)


def guards_of(
    text: str | Sequence[str], where: str = "--guard", *, score: str | None = None
) -> list[GuardSpec]:
    """Return guards written as ``METRIC``, ``METRIC:MARGIN`` or ``METRIC:MARGIN:min``.

    Args:
        text: the guards as written by the user.
        where: option or key of the guards, for errors.
        score: metric of the score, which cannot be guarded; None: any metric can.

    Raises:
        ConfigError: a margin is negative, a metric is guarded twice, the score is guarded, or the
            direction of a metric is not clear.
    """
    guards: list[GuardSpec] = []
    for item in split_list(text) if isinstance(text, str) else text:
        metric, mode = _with_mode(item)
        margin = 0.0
        head, _, last = metric.rpartition(":")
        if head:
            try:
                margin = float(last)
                metric = head
            except ValueError:
                pass  # the column name may contain a colon
        if not 0 <= margin < math.inf:
            raise ConfigError(
                f"the margin of {metric} is {margin:g}",
                where,
                f"write the tolerated loss as a number of at least 0, such as {metric}:0.02",
                code="negative-margin",
            )
        if any(guard.metric == metric for guard in guards):
            raise ConfigError(
                f"{metric} is guarded twice", where, "keep one of the two", code="named-twice"
            )
        if metric == score:
            raise ConfigError(
                f"{metric} is the score, so it cannot be a guard",
                where,
                "guard another metric",
                code="guarded-score",
            )
        fix = f"write {metric}:{margin:g}:min, or {metric}:{margin:g}:max if larger is better"
        guards.append(GuardSpec(metric, margin, usual_direction(metric, mode, where, fix)))
    return guards


def _with_mode(text: str) -> tuple[str, Mode | None]:
    """Return the metric and the mode of ``METRIC:min``; the mode is None for ``METRIC``."""
    metric, _, mode = text.rpartition(":")
    if metric and mode in _MODES:
        return metric, _MODES[mode]
    return text, None


def parse_second(text: str, names: Sequence[str] = ()) -> SecondSpec | None:
    """Read the second objective written as ``METRIC`` or ``METRIC:min``; None for an empty text.

    Args:
        text: the second objective.
        names: names of the scores, which cannot be the second objective.

    Raises:
        ConfigError: it is a score, or its name leaves open whether smaller values are better.
    """
    if not text:
        return None
    metric, mode = _with_mode(text)
    if metric in names:
        raise ConfigError(
            f"{metric} is the score, so it cannot be the second objective",
            "--second",
            "choose another metric, such as a cost",
            code="second-is-score",
        )
    fix = f"write --second {metric}:min, or {metric}:max if larger is better"
    return SecondSpec(metric, usual_direction(metric, mode, "--second", fix))


def with_second(results: Results, second: SecondSpec, measured: Results | None) -> Results:
    """Return results in which the trials have a value of a second objective.

    Args:
        results: results with the score.
        second: the second objective.
        measured: results with the second objective as the score; None if it is a cost, such as
            tokens, whose amount the trials have recorded.
    """
    values: dict[tuple[str, str], float] = {}
    for trial in (results if measured is None else measured).trials:
        value = trial.costs.get(second.metric, math.nan) if measured is None else trial.score
        if trial.state == "COMPLETE":
            values[trial.configuration, trial.seed] = value
    trials = []
    for trial in results.trials:
        value = values.get((trial.configuration, trial.seed), math.nan)
        trials.append(replace(trial, second=value))
    fresh = results.fresh
    if fresh is not None:
        measured_fresh = None if measured is None else measured.fresh
        fresh = with_second(fresh, second, measured_fresh)
    return replace(
        results,
        objective=replace(results.objective, second=second.metric, second_mode=second.mode),
        trials=tuple(trials),
        fresh=fresh,
    )


def check_combinations(*, scores: int, guards: bool, problems: bool, against: bool) -> None:
    """Reject options that cannot be combined with several scores or with guards.

    Args:
        scores: number of scores.
        guards: whether metrics are guarded.
        problems: whether the problems that each run solved are given.
        against: whether the runs are compared with a number.

    Raises:
        ConfigError: two of the options cannot be combined; the error names one of them.
    """
    if scores > 1 and problems:
        raise ConfigError(
            "--problems needs a single score",
            "--problems",
            "choose one score, or leave out --problems",
            code="several-scores",
        )
    if guards and against:
        raise ConfigError(
            "guards cannot be combined with --against",
            "--guard",
            "a guard compares with the runs of a baseline, and a number has none: leave out one of "
            "the two options",
            code="guards-not-possible",
        )


def combined(parts: Mapping[str, Results], composite: Composite) -> Results:
    """Return results in which the score of each run is a composite of several scores.

    Args:
        parts: benchmark -> results with its score.
        composite: how the scores are combined.

    Raises:
        ConfigError: larger values are better for some scores, and smaller values for others.
    """
    first = next(iter(parts.values()))
    if len({part.objective.mode for part in parts.values()}) > 1:
        raise ConfigError(
            "larger values are better for some scores, and smaller values for others",
            "--score",
            "combine only scores with the same direction, and pass the others with --guard",
            code="two-directions",
        )
    label = composite.label(list(parts))
    fresh = None
    if first.fresh is not None:
        of_fresh = {name: part.fresh for name, part in parts.items() if part.fresh is not None}
        fresh = combined(of_fresh, composite)
    notes = [note for part in parts.values() for note in part.warnings]
    by_task = {}
    for task in first.by_task:
        by_task[task] = combined(
            {name: part.by_task[task] for name, part in parts.items()}, composite
        )
    trials = _combined_trials(parts, composite, label)
    has_curves = all(any(trial.curves for trial in part.trials) for part in parts.values())
    if has_curves and not any(trial.curves for trial in trials):
        names = joined(list(parts))
        note = f"No run has {names} at the same step, so their composite has no curve."
        if not first.at_equal_amounts:
            note += " Each of these scores uses its own last evaluations."
        notes.append(note)
    return replace(
        first,
        objective=replace(first.objective, metric=label),
        trials=tuple(trials),
        fresh=fresh,
        warnings=tuple(dict.fromkeys(notes)),
        by_task=by_task,
        by_score=dict(parts),
    )


def _combined_trials(
    parts: Mapping[str, Results], composite: Composite, label: str
) -> list[TrialRecord]:
    """Return one trial per configuration and seed that every part has."""
    of_parts = []
    for part in parts.values():
        of_parts.append({(trial.configuration, trial.seed): trial for trial in part.trials})
    trials = []
    for key, trial in of_parts[0].items():
        if not all(key in of_part for of_part in of_parts):
            continue
        same = [of_part[key] for of_part in of_parts]
        state = joint_state(each.state for each in same)
        scores = {name: each.score for name, each in zip(parts, same, strict=True)}
        curve = _combined_curve(parts, same, composite)
        curves = {} if curve is None else {label: curve}
        reason = next((each.reason for each in same if each.reason), "")
        score = composite.of(scores) if state == "COMPLETE" else math.nan
        trials.append(replace(trial, state=state, score=score, curves=curves, reason=reason))
    return trials


def _combined_curve(
    parts: Mapping[str, Results], trials: Sequence[TrialRecord], composite: Composite
) -> Curve | None:
    """Return the composite's curve at the steps that all scores have; None without such steps."""
    curves = []
    for part, trial in zip(parts.values(), trials, strict=True):
        if part.objective.metric not in trial.curves:
            return None
        curve = trial.curves[part.objective.metric]
        curves.append(dict(zip(curve.steps, curve.values, strict=True)))
    steps = sorted(set(curves[0]).intersection(*curves[1:]))
    if not steps:
        return None
    values = []
    for step in steps:
        scores = {name: curve[step] for name, curve in zip(parts, curves, strict=True)}
        values.append(composite.of(scores))
    return Curve(tuple(steps), tuple(values))
