"""CMA-ES without stored state: the optimizer is replayed from the finished trials.

Optuna's own sampler keeps a pickled optimizer inside the study. A sweep's state is plain JSON, and telling
an optimizer the same generations again gives the same optimizer, so only the generation is noted.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from cmaes import CMA  # type: ignore[import-untyped]
from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

GENERATION_ATTR = "loptune:cma_generation"
ORDER_ATTR = "loptune:order"  # position among the finished configurations

Range: TypeAlias = FloatDistribution | IntDistribution


class ReplayedCmaEsSampler(BaseSampler):  # type: ignore[misc]
    """CMA-ES over the always-active numeric parameters, uniform sampling of the others.

    Args:
        ranges: the parameters CMA-ES moves, at least two.
        startup: finished trials before CMA-ES proposes.
        seed: seed of this proposal.
    """

    def __init__(self, ranges: Mapping[str, Range], startup: int, seed: int) -> None:
        self._ranges = dict(sorted(ranges.items()))
        self._startup = startup
        self._seed = seed
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The parameters CMA-ES moves, once enough trials have finished."""
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return dict(self._ranges) if len(finished) >= self._startup else {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """One point of the current generation."""
        if not search_space:
            return {}
        optimizer = self._replay(study)
        study._storage.set_trial_system_attr(trial._trial_id, GENERATION_ATTR, optimizer.generation)
        point = optimizer.ask()
        return {
            key: _from_unit(float(x), range_) for x, (key, range_) in zip(point, self._ranges.items(), strict=True)
        }

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A uniform value for a parameter CMA-ES does not move."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _replay(self, study: Study) -> CMA:
        size = len(self._ranges)
        optimizer = CMA(
            mean=np.full(size, 0.5),
            sigma=1 / 6,
            bounds=np.array([[0.0, 1.0]] * size),
            seed=self._seed,
            n_max_resampling=10 * size,
        )
        sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
        finished = [
            trial
            for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if GENERATION_ATTR in trial.system_attrs
        ]
        # In the order in which they ended: a straggler must not displace what a generation was told before.
        finished.sort(key=lambda trial: trial.system_attrs[ORDER_ATTR])
        while True:
            told = [t for t in finished if t.system_attrs[GENERATION_ATTR] == optimizer.generation]
            if len(told) < optimizer.population_size:
                return optimizer
            optimizer.tell(
                [
                    (
                        np.array([_to_unit(t.params[key], range_) for key, range_ in self._ranges.items()]),
                        sign * float(t.value),
                    )
                    for t in told[: optimizer.population_size]
                ]
            )


def _edges(range_: Range) -> tuple[float, float]:
    """The ends of the scale that [0, 1] stands for; whole steps get equal shares of it."""
    half = (range_.step or 0.0) / 2
    low, high = range_.low - half, range_.high + half
    return (math.log(low), math.log(high)) if range_.log else (low, high)


def _to_unit(value: float, range_: Range) -> float:
    low, high = _edges(range_)
    return ((math.log(value) if range_.log else value) - low) / (high - low)


def _from_unit(x: float, range_: Range) -> float | int:
    low, high = _edges(range_)
    value = low + x * (high - low)
    value = math.exp(value) if range_.log else value
    if range_.step and not range_.log:
        value = range_.low + round((value - range_.low) / range_.step) * range_.step
    value = min(max(value, range_.low), range_.high)
    return round(value) if isinstance(range_, IntDistribution) else float(value)
