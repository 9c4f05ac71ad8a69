"""Proposing a configuration that was not tried yet."""

import itertools
import logging
import random
from collections.abc import Sequence

from sweep.search.history import Configuration
from sweep.search.study import ask, make_sampler
from sweep.space.arms import arm_of, arms
from sweep.space.checks import MAX_GRID
from sweep.space.points import Parameters, Space, fingerprint
from sweep.space.spec import SweepSpec

logger = logging.getLogger(__name__)

SAMPLER_ATTEMPTS = 15  # proposals of a known configuration before others are tried
_RANDOM_ATTEMPTS = 20


def propose_next(spec: SweepSpec, configurations: Sequence[Configuration]) -> tuple[Parameters | None, dict[str, int]]:
    """Like `propose`, for the arm with the fewest configurations; None once every arm has its budget.

    Each arm is searched by a study of its own, which sees nothing of the others. The samplers of all arms have
    the same seeds, so that rules begin with the same values of what they share.
    """
    searches = arms(spec)
    own: dict[str, list[Configuration]] = {name: [] for name in searches}
    for configuration in configurations:
        own[arm_of(spec, configuration.parameters)].append(configuration)
    for name in sorted(searches, key=lambda name: len(own[name])):
        arm, limit = searches[name], searches[name].search.configurations
        if limit is None or len(own[name]) < len(arm.baselines) + limit:
            point, noted = propose(arm, Space(arm.parameters), own[name])
            if point is not None:
                return point, noted
            logger.info("every configuration of %s has been tried", name or "the space")
    return None, {}


def propose(
    spec: SweepSpec, space: Space, configurations: Sequence[Configuration]
) -> tuple[Parameters | None, dict[str, int]]:
    """A point that was not tried yet: the same training with the same seeds would say nothing new.

    A sampler that repeats itself is asked again, from attempt to attempt less greedily; then points are drawn
    at random, and at last a finite space is gone through.

    Returns:
        The point, None where the space is exhausted, and what the sampler noted about it.
    """
    known = {configuration.fingerprint for configuration in configurations}

    def is_new(point: Parameters) -> bool:
        return fingerprint(space.resolve(point, spec.base)) not in known

    settings = spec.search
    if settings.sampler != "grid":
        for attempt in range(SAMPLER_ATTEMPTS + _RANDOM_ATTEMPTS):
            if attempt == SAMPLER_ATTEMPTS:
                settings = settings.model_copy(update={"sampler": "random"})
            sampler = make_sampler(settings, space, len(configurations), attempt)
            point, noted = ask(spec, space, configurations, sampler)
            if is_new(point):
                return point, noted
    if not space.is_finite:
        return None, {}
    points = list(itertools.islice(space.grid(lambda parameter: parameter.options or []), MAX_GRID))
    # In random order, so that a sweep cut short has not only seen one corner of the space.
    random.Random(settings.seed).shuffle(points)
    return next(filter(is_new, points), None), {}
