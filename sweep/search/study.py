"""The next configuration, asked of an Optuna study of the sweep's history; the study itself, for a
dashboard.
"""

import itertools
import json
import logging
import random
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from sweep.search.history import Configuration, outcome
from sweep.space.arms import arm_of, arms
from sweep.space.checks import MAX_GRID
from sweep.space.parameters import ParameterSpec
from sweep.space.points import Parameters, Space, fingerprint
from sweep.space.spec import SearchSpec, SweepSpec

logger = logging.getLogger(__name__)

_EI_CANDIDATES = 24  # Optuna's default
SAMPLER_ATTEMPTS = 15  # proposals of a known configuration before others are tried
_RANDOM_ATTEMPTS = 20

# Optuna announces every study and trial on the console, where the sweep has a table of its own.
optuna.logging.set_verbosity(optuna.logging.ERROR)


def propose_next(spec: SweepSpec, configurations: Sequence[Configuration]) -> Parameters | None:
    """Propose for the arm with the fewest configurations; None once every arm has its
    budget.

    Each arm is searched by a study of its own, which sees nothing of the others. The samplers of
    all arms have the same seeds, so that rules begin with the same values of what they share.

    Without arms and baselines, a search that learns begins with the program's own values.
    """
    searches = arms(spec)
    by_arm: dict[str, list[Configuration]] = {name: [] for name in searches}
    for configuration in configurations:
        by_arm[arm_of(spec, configuration.parameters)].append(configuration)
    for name in sorted(searches, key=lambda name: len(by_arm[name])):
        arm = searches[name]
        limit = searches[name].search.configurations
        if limit is None or len(by_arm[name]) < len(arm.baselines) + limit:
            space = Space(arm.parameters)
            first = None if name or configurations else _own_values(arm, space)
            point = first or propose(arm, space, by_arm[name])
            if point is not None:
                return point
            logger.info("every configuration of %s has been tried", name or "the space")
    return None


def _own_values(spec: SweepSpec, space: Space) -> Parameters | None:
    """Return the point of the program's own values; None where the ranges do not hold it."""
    if spec.search.sampler not in ("gp", "tpe"):
        return None
    try:
        point = space.complete({}, spec.program)
    except KeyError:  # of a switch the program knows nothing
        return None
    return point if space.contains(point) else None


def propose(
    spec: SweepSpec, space: Space, configurations: Sequence[Configuration]
) -> Parameters | None:
    """Return a point that was not tried yet: the same training with the same seeds would say
    nothing new.

    A sampler that repeats itself is asked again, from attempt to attempt less greedily; then points
    are drawn at random, and at last a finite space is gone through. None where it is exhausted.
    """
    proposed = {configuration.fingerprint for configuration in configurations}

    def is_new(point: Parameters) -> bool:
        return fingerprint(space.resolve(point, spec.program)) not in proposed

    settings = spec.search
    if settings.sampler != "grid":
        for attempt in range(SAMPLER_ATTEMPTS + _RANDOM_ATTEMPTS):
            if attempt == SAMPLER_ATTEMPTS:
                settings = settings.model_copy(update={"sampler": "random"})
            sampler = make_sampler(settings, space, len(configurations), attempt)
            point = ask(spec, space, configurations, sampler)
            if is_new(point):
                return point
    if not space.is_finite:
        return None
    points = list(itertools.islice(space.grid(lambda parameter: parameter.options or []), MAX_GRID))
    # In random order, so that a sweep cut short has not only seen one corner of the space.
    random.Random(settings.seed).shuffle(points)
    return next(filter(is_new, points), None)


def distribution(parameter: ParameterSpec, for_sampler: bool = True) -> BaseDistribution | None:
    """Return Optuna's form of a range; None for a fixed value, which a sampler need not know.

    A sampler sees listed numbers as their places in ascending order: it learns less from values
    that it takes for names.
    """
    if parameter.kind in ("value", "by"):
        return None
    options = parameter.options
    if options is None:
        low, high, _ = parameter.bounds
        return FloatDistribution(low, high, log=parameter.kind == "loguniform")
    if parameter.kind == "choice" and any(type(option) not in (int, float) for option in options):
        return CategoricalDistribution([_label(option) for option in options])
    if for_sampler:
        return IntDistribution(0, len(options) - 1)
    return FloatDistribution(min(options), max(options))


def sample(space: Space, trial: optuna.Trial) -> Parameters:
    """Ask a trial for every parameter that turns out to be active."""

    def choose(key: str, parameter: ParameterSpec) -> Any:
        range_ = distribution(parameter)
        if isinstance(range_, CategoricalDistribution):
            chosen = trial.suggest_categorical(key, range_.choices)
            return next(option for option in parameter.options or [] if _label(option) == chosen)
        if isinstance(range_, IntDistribution):
            return sorted(parameter.options or [])[trial.suggest_int(key, 0, range_.high)]
        if isinstance(range_, FloatDistribution):
            return trial.suggest_float(key, range_.low, range_.high, log=range_.log)
        return parameter.value

    return space.walk(choose)


def make_sampler(search: SearchSpec, space: Space, number: int, attempt: int) -> BaseSampler:
    """Return the sampler of one proposal, seeded by (search.seed, number, attempt).

    A fresh seed for every proposal makes it a function of the history alone: nothing is lost with
    the process, and a restored sampler cannot repeat itself.
    """
    seed = int(np.random.SeedSequence([search.seed, number, attempt]).generate_state(1)[0])
    startup = search.startup or (4 if search.sampler == "gp" else 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if search.sampler == "tpe":
            # Parameters with conditions are modeled in groups that occur together; running trials
            # count as bad ones, so that parallel proposals spread. Of fewer candidates the best is
            # less often the one that was best before: on a grid the sampler repeats itself
            # otherwise.
            return optuna.samplers.TPESampler(
                n_startup_trials=startup,
                n_ei_candidates=max(1, _EI_CANDIDATES >> attempt),
                group=True,
                seed=seed,
            )
        if search.sampler == "gp":
            return optuna.samplers.GPSampler(
                n_startup_trials=startup, seed=seed, warn_independent_sampling=False
            )
        return optuna.samplers.RandomSampler(seed=seed)


def ask(
    spec: SweepSpec, space: Space, configurations: Sequence[Configuration], sampler: BaseSampler
) -> Parameters:
    """Return the sampler's next point."""
    study = optuna.create_study(direction=direction(spec), sampler=sampler)
    if not isinstance(sampler, optuna.samplers.RandomSampler):  # which looks at nothing
        study.add_trials(
            [
                frozen_trial(spec, space, configuration, for_sampler=True)
                for configuration in configurations
            ]
        )
    return sample(space, study.ask())


def frozen_trial(
    spec: SweepSpec, space: Space, configuration: Configuration, for_sampler: bool = False
) -> FrozenTrial:
    """Return a configuration as a trial of the study: for people, or for a sampler.

    A baseline may have values outside of the ranges, which no sampler expects. The study that
    people look at shows its score and the values that Optuna can hold; a sampler sees an empty
    failed trial, so that numbers agree.
    """
    result = outcome(configuration, spec.seeds)
    if for_sampler and not space.contains(configuration.parameters):
        return optuna.create_trial(state=TrialState.FAIL)
    stops = (
        {result.step or 0: result.score}
        if result.state == "PRUNED" and result.score is not None
        else {}
    )
    trial = optuna.create_trial(
        state=TrialState[result.state],
        value=result.score,
        **_place(space, configuration.parameters, for_sampler),
        user_attrs={} if for_sampler else _notes(configuration),
        intermediate_values=stops,
    )
    trial.datetime_start = datetime.fromtimestamp(configuration.time)
    if result.time is not None:
        trial.datetime_complete = datetime.fromtimestamp(max(result.time, configuration.time))
    return trial


def write_study(spec: SweepSpec, configurations: Sequence[Configuration], path: Path) -> None:
    """Write the sweep as an Optuna study into a new SQLite file, for optuna-dashboard; nothing
    reads it back.
    """
    space = Space(spec.parameters)
    path.unlink(missing_ok=True)
    study = optuna.create_study(
        study_name=spec.name, storage=f"sqlite:///{path}", direction=direction(spec)
    )
    study.add_trials([frozen_trial(spec, space, configuration) for configuration in configurations])


def _place(space: Space, point: Parameters, for_sampler: bool) -> Parameters:
    """Return the values of a point that Optuna can hold, and their ranges."""
    values = {}
    ranges = {}
    for key, value in point.items():
        parameter = space.parameters[key]
        range_ = distribution(parameter, for_sampler)
        if range_ is not None and parameter.contains(value):
            ranges[key] = range_
            values[key] = _label(value)
            if isinstance(range_, IntDistribution):
                values[key] = sorted(parameter.options or []).index(value)
    return {"params": values, "distributions": ranges}


def _notes(configuration: Configuration) -> dict[str, Any]:
    """Return the user attributes of a trial for people."""
    scores = {str(seed): result.score for seed, result in sorted(configuration.results.items())}
    return {"configuration": configuration.resolved, "scores": scores}


def direction(spec: SweepSpec) -> str:
    """Return Optuna's word for the objective's mode."""
    return "maximize" if spec.objective.mode == "max" else "minimize"


def _label(option: Any) -> Any:
    """Return a choice as a value that Optuna can store: lists and mappings as JSON text."""
    if option is None or isinstance(option, bool | int | float | str):
        return option
    return json.dumps(option)
