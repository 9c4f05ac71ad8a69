"""Select the baseline: the configuration that all others are compared with."""

from collections.abc import Iterable

from sweep.search.history import Configuration
from sweep.space.arms import arm_of, arms
from sweep.space.spec import SweepSpec


def is_baseline(spec: SweepSpec, configuration: Configuration) -> bool:
    """Return whether a configuration is the baseline: the first listed one or, if none is listed,
    one for which the program's `is_plain` is true.

    With arms, every configuration of the first arm is a baseline.
    """
    if spec.search.tune_within is not None:
        return arm_of(spec, configuration.parameters) == next(iter(arms(spec)))
    if spec.baselines:
        return configuration.number == 0
    return spec.program.is_plain(configuration.resolved)


def first_baseline(
    spec: SweepSpec, configurations: Iterable[Configuration]
) -> Configuration | None:
    """Return the baseline with the lowest number among ``configurations``; None if none of them is
    a baseline.
    """
    baselines = (each for each in configurations if is_baseline(spec, each))
    return min(baselines, key=lambda configuration: configuration.number, default=None)
