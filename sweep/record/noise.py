"""The noise between seeds that a sweep has shown."""

import math
import statistics
from collections.abc import Sequence

from dashboards.statistics.seed_noise import Noise, seed_noise
from sweep.search.history import Configuration
from sweep.space.spec import SweepSpec


def sweep_noise(spec: SweepSpec, proposed: Sequence[Configuration]) -> Noise:
    """The noise between seeds of the configurations of a sweep that are complete on all of them."""
    whole = [
        one
        for one in proposed
        if all(seed in one.results and one.results[seed].state == "COMPLETE" for seed in spec.seeds)
    ]
    return seed_noise({str(one.number): {seed: score(one, seed) for seed in spec.seeds} for one in whole})


def unpaired_noise(proposed: Sequence[Configuration]) -> Noise:
    """The same of configurations one by one: what seeds do to all of them alike is still in it."""
    squares, freedom = 0.0, 0
    for one in proposed:
        values = [value for seed in one.results if not math.isnan(value := score(one, seed))]
        if len(values) > 1:
            squares += (len(values) - 1) * statistics.variance(values)
            freedom += len(values) - 1
    return Noise(math.sqrt(squares / freedom), freedom) if freedom else Noise(math.nan, 0)


def score(configuration: Configuration, seed: int) -> float:
    """Of one trial; NaN where it failed."""
    result = configuration.results[seed]
    return result.score if result.state == "COMPLETE" and result.score is not None else math.nan
