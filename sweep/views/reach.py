"""Warn about verdicts that a plan cannot reach, before any trial runs."""

import itertools
from collections.abc import Iterator
from typing import Any

from dashboards.fresh_seeds import FRESH_SEEDS, MIN_SEEDS
from dashboards.statistics.peaks import FITTED_VALUES, MIN_PEAK_SEEDS
from dashboards.statistics.tournament import (
    MIN_TRIALS,
    MIN_TRIALS_TWO_PARAMETERS,
    Refusal,
    incomparable,
)
from dashboards.words import REFUSAL_TEXT
from loptune.terminal.table import counted
from sweep.programs.base import Advice
from sweep.record.sweep_record import planned_configurations
from sweep.space.arms import arms
from sweep.space.parameters import ParameterSpec
from sweep.space.points import Space
from sweep.space.spec import SweepSpec

_MAX_POINTS = 2000  # maximum number of points whose settings are checked


def out_of_reach(spec: SweepSpec) -> Iterator[Advice]:
    """Yield a warning for each verdict that the sweep and its confirmation cannot give."""
    if spec.confirms is not None:  # the original sweep has already printed the warnings
        return
    configurations = planned_configurations(spec)
    if configurations == 1:
        yield Advice(
            "the sweep has one configuration, so there is nothing to compare",
            "search.configurations, baselines",
            "raise search.configurations, or list a second configuration under baselines",
        )
    elif spec.search.tune_within is not None:
        if not _is_fitted_grid(spec):
            yield from _incomparable_arms(spec)
    elif spec.search.configurations == 0 and len(spec.seeds) < MIN_SEEDS:
        yield Advice(
            f"the sweep compares {configurations} listed configurations on "
            f"{counted(len(spec.seeds), 'seed')}, but fewer than {MIN_SEEDS} seeds cannot confirm "
            "an improvement",
            "seeds",
            f"list at least {MIN_SEEDS} seeds, preferably {FRESH_SEEDS}: "
            f"seeds='{list(range(FRESH_SEEDS))}'",
        )
    if configurations > 1 and not _may_have_baseline(spec):
        keys = spec.program.always_shown
        unless = f" and no configuration has {' and '.join(keys)} = 0" if keys else ""
        yield Advice(
            f"no baseline is listed{unless}, so there is nothing to compare the best with",
            "baselines",
            "list your usual setting as the first of baselines",
        )


def _may_have_baseline(spec: SweepSpec) -> bool:
    """Return whether one of the configurations can serve as the baseline."""
    if spec.baselines or spec.search.tune_within is not None:
        return True
    space = Space(spec.parameters)
    points = space.grid(_likely_values)
    some = itertools.islice(points, _MAX_POINTS)
    return any(spec.program.is_plain(space.resolve(point, spec.program)) for point in some)


def _likely_values(parameter: ParameterSpec) -> list[Any]:
    """Return the values that a search may propose. The middle of a range stands for all of its
    values, because a single value, such as 0, is never likely.
    """
    if parameter.options is not None:
        return parameter.options
    return [(parameter.bounds.low + parameter.bounds.high) / 2]


def _is_finite(spec: SweepSpec) -> bool:
    return Space(spec.parameters).is_finite


def _is_fitted_grid(spec: SweepSpec) -> bool:
    """Return whether all arms run the same grid of values, with enough values to fit each arm's
    peak.
    Such arms are compared without fresh seeds.
    """
    if len(spec.seeds) < MIN_PEAK_SEEDS:
        return False
    tuned_arms = list(arms(spec).values())
    grids = [_tuned_values(arm) for arm in tuned_arms]
    first = grids[0]
    if len(first) != 1 or grids.count(first) < len(grids):
        return False
    [values] = first
    if values is None or len(values) < FITTED_VALUES:
        return False
    return all(planned_configurations(arm) == len(values) for arm in tuned_arms)


def _tuned_values(arm: SweepSpec) -> list[list[Any] | None]:
    """Return the possible values of each tuned parameter; None if they cannot be listed."""
    tuned = [each for each in arm.parameters.values() if each.kind not in ("value", "by")]
    return [parameter.options for parameter in tuned]


def _incomparable_arms(spec: SweepSpec) -> Iterator[Advice]:
    """Yield a warning for each reason why some arms cannot be compared with the first."""
    sizes: dict[str, tuple[int, int]] = {}  # configurations and tuned parameters of each arm
    for name, arm in arms(spec).items():
        configurations = planned_configurations(arm)
        sizes[name] = (configurations, Space(arm.parameters).count_tuned())
    baseline, *others = sizes
    refused: dict[Refusal, list[str]] = {}
    for name in others:
        refusal = incomparable(*sizes[name], *sizes[baseline])
        if refusal is not None:
            refused.setdefault(refusal, []).append(name)
    fewest: dict[Refusal, int] = {
        "few trials": MIN_TRIALS,
        "few trials of two": MIN_TRIALS_TWO_PARAMETERS,
    }
    for refusal, names in refused.items():
        hint = "tune one parameter (or two) of every arm, and fix the other parameters with `value`"
        if refusal in fewest:
            listed = len(next(iter(arms(spec).values())).baselines)
            hint = (
                f"set search.configurations={fewest[refusal] - listed}: the number is for each "
                f"value of {spec.search.tune_within}"
            )
            if all(size[0] < fewest[refusal] for size in sizes.values()) and _is_finite(spec):
                hint = (
                    "add values to the tuned parameter: each value of "
                    f"{spec.search.tune_within} needs {fewest[refusal]} configurations"
                )
        elif refusal == "smaller budget":
            hint = (
                f"list the same number of distinct configurations for every value of "
                f"{spec.search.tune_within}"
            )
        yield Advice(
            f"{', '.join(names)} cannot be compared with {baseline} at their best: "
            f"{REFUSAL_TEXT[refusal]}",
            f"search.configurations, search.tune_within: {spec.search.tune_within}",
            hint,
        )
