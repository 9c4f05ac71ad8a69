"""Propose the next configuration with an Optuna study of the sweep's history; export the study for
optuna-dashboard.
"""

import itertools
import json
import logging
import math
import random
import statistics
import warnings
from collections.abc import Iterator, Sequence
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

from dashboards.trial import Mode, sign_of
from loptune.sqlite_url import sqlite_url
from sweep.search.history import Configuration, failed_by_settings, outcome
from sweep.space.arms import arm_of, arms
from sweep.space.checks import MAX_GRID
from sweep.space.parameters import ParameterSpec
from sweep.space.points import MissingValueError, Parameters, Space, fingerprint
from sweep.space.spec import MULTI_OBJECTIVE, SearchSpec, SweepSpec

logger = logging.getLogger(__name__)

_EI_CANDIDATES = 24  # Optuna's default
SAMPLER_ATTEMPTS = 15  # attempts with the sampler before random ones
_RANDOM_ATTEMPTS = 20
_MAX_SCORE = 1e100  # samplers square scores

_DIGITS = 12  # significant digits of a proposed value
_MANY_FAILED = 0.25  # fraction of failed configurations

# Silence Optuna's log of studies and trials; the sweep prints its own.
optuna.logging.set_verbosity(optuna.logging.ERROR)


def propose_next(spec: SweepSpec, configurations: Sequence[Configuration]) -> Parameters | None:
    """Propose a point for the arm with the fewest configurations. Return None once every arm has
    used its budget.

    Each arm has its own study, which does not contain the other arms' configurations. All arms use
    the same sampler seeds, so rules start with the same values of shared parameters.

    Without arms and baselines, `gp` and `tpe` start with the program's own values.
    """
    searches = arms(spec)
    by_arm: dict[str, list[Configuration]] = {name: [] for name in searches}
    for configuration in configurations:
        by_arm[arm_of(spec, configuration.parameters)].append(configuration)
    fewest_first = sorted(searches, key=lambda name: len(by_arm[name]))
    for name in fewest_first:
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
    """Return the point with the program's own values; None if it is outside the ranges."""
    if spec.search.sampler not in ("gp", "tpe"):
        return None
    try:
        point = space.complete({}, spec.program)
    except MissingValueError:  # the program has no value for a switch
        return None
    return point if space.contains(point) else None


def propose(
    spec: SweepSpec, space: Space, configurations: Sequence[Configuration]
) -> Parameters | None:
    """Return a point that has not been tried, because rerunning the same seeds adds nothing.

    If the sampler repeats a point, it proposes again, less greedily each time; then points are
    sampled at random; finally a finite space is enumerated. None if it is exhausted.
    """
    if spec.search.sampler != "grid":
        for point in _drawn(spec, space, configurations):
            if _is_new(point, spec, space, configurations):
                return point
    if space.is_finite:
        for point in _enumerated(space, spec.search.seed):
            if _is_new(point, spec, space, configurations):
                return point
    return None


def _is_new(
    point: Parameters, spec: SweepSpec, space: Space, configurations: Sequence[Configuration]
) -> bool:
    """Return whether no configuration resolves to the same settings."""
    mark = fingerprint(space.resolve(point, spec.program))
    return all(configuration.fingerprint != mark for configuration in configurations)


def _drawn(
    spec: SweepSpec, space: Space, configurations: Sequence[Configuration]
) -> Iterator[Parameters]:
    """Yield proposals of the sampler, then random points."""
    number = len(configurations)
    for attempt in range(SAMPLER_ATTEMPTS):
        sampler = make_sampler(spec.search, space, number, attempt)
        yield ask(spec, space, configurations, sampler)
    at_random = spec.search.model_copy(update={"sampler": "random"})
    for attempt in range(SAMPLER_ATTEMPTS, SAMPLER_ATTEMPTS + _RANDOM_ATTEMPTS):
        yield ask(spec, space, (), make_sampler(at_random, space, number, attempt))


def _enumerated(space: Space, seed: int) -> list[Parameters]:
    """Return the points of a finite space in random order, so that a stopped sweep has not covered
    only one corner.
    """
    points = list(itertools.islice(space.points(), MAX_GRID))
    random.Random(seed).shuffle(points)
    return points


def distribution(parameter: ParameterSpec, for_sampler: bool = True) -> BaseDistribution | None:
    """Return a range as an Optuna distribution; None for a fixed value.

    For a sampler, listed numbers become indices in ascending order, because a sampler learns less
    from unordered categories.
    """
    if parameter.kind in ("value", "by"):
        return None
    if parameter.kind == "logint":
        return IntDistribution(int(parameter.bounds.low), int(parameter.bounds.high), log=True)
    options = parameter.options
    if options is None:
        is_log = parameter.kind == "loguniform"
        return FloatDistribution(parameter.bounds.low, parameter.bounds.high, log=is_log)
    if parameter.kind == "choice" and any(type(option) not in (int, float) for option in options):
        return CategoricalDistribution([_label(option) for option in options])
    if for_sampler:
        return IntDistribution(0, len(options) - 1)
    return FloatDistribution(min(options), max(options))


def sample(space: Space, trial: optuna.Trial) -> Parameters:
    """Suggest a value for every active parameter."""

    def choose(key: str, parameter: ParameterSpec) -> Any:
        range_ = distribution(parameter)
        if isinstance(range_, CategoricalDistribution):
            by_label = {_label(option): option for option in parameter.options or []}
            return by_label[trial.suggest_categorical(key, range_.choices)]
        if isinstance(range_, IntDistribution) and range_.log:
            return trial.suggest_int(key, range_.low, range_.high, log=True)
        if isinstance(range_, IntDistribution):
            ordered = sorted(parameter.options or [])
            return ordered[trial.suggest_int(key, 0, range_.high)]
        if isinstance(range_, FloatDistribution):
            proposed: float = trial.suggest_float(key, range_.low, range_.high, log=range_.log)
            return _rounded(proposed, range_)
        return parameter.value

    return space.walk(choose)


def _rounded(value: float, range_: FloatDistribution) -> float:
    """Return a value without the rounding error of Optuna's logarithms. With it, a value that a
    sampler repeats would look like a new one.
    """
    rounded = float(f"{value:.{_DIGITS}g}")
    return float(min(max(rounded, range_.low), range_.high))


def make_sampler(search: SearchSpec, space: Space, number: int, attempt: int) -> BaseSampler:
    """Return the sampler of one proposal, seeded by (search.seed, number, attempt).

    With a new seed per proposal, the proposal depends only on the history: no state is lost with
    the process, and a restarted sampler does not repeat itself.
    """
    seed = int(np.random.SeedSequence([search.seed, number, attempt]).generate_state(1)[0])
    startup = search.startup or (4 if search.sampler == "gp" else 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if search.sampler == "nsga2":
            return optuna.samplers.NSGAIISampler(population_size=max(2, startup), seed=seed)
        if search.sampler in ("tpe", "motpe"):
            # Parameters with conditions are modeled in groups that occur together; running trials
            # count as bad ones, so that parallel proposals spread. Each attempt uses fewer EI
            # candidates, which makes TPE less greedy: on a grid it would repeat itself.
            return optuna.samplers.TPESampler(
                n_startup_trials=startup,
                n_ei_candidates=max(1, _EI_CANDIDATES >> attempt),
                multivariate=True,
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
    study = optuna.create_study(directions=directions(searched_modes(spec)), sampler=sampler)
    if not isinstance(sampler, optuna.samplers.RandomSampler):  # it would ignore the history
        trials = sampler_trials(spec, space, configurations)
        if isinstance(sampler, optuna.samplers.NSGAIISampler):
            trials = _in_generations(trials, sampler)
        study.add_trials(trials)
    return sample(space, study.ask())


def searched_modes(spec: SweepSpec) -> list[Mode]:
    """Return the directions of the objectives that the sampler sees."""
    return spec.directions[: 2 if spec.search.sampler in MULTI_OBJECTIVE else 1]


def _in_generations(
    trials: Sequence[FrozenTrial], sampler: optuna.samplers.NSGAIISampler
) -> list[FrozenTrial]:
    """Return the trials, each with its NSGA-II generation.

    Optuna numbers the trials that it asks for. Trials that are added to a study have no number, and
    without one NSGA-II stays in its first, random generation forever.
    """
    key = sampler._get_generation_key()
    complete = 0
    numbered = []
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            generation = complete // sampler._population_size
            complete += 1
            trial = optuna.create_trial(
                state=trial.state,
                values=trial.values,
                params=trial.params,
                distributions=trial.distributions,
                system_attrs={key: generation},
            )
        numbered.append(trial)
    return numbered


def sampler_trials(
    spec: SweepSpec, space: Space, configurations: Sequence[Configuration]
) -> list[FrozenTrial]:
    """Return the history as a sampler sees it.

    Samplers ignore failed trials, so they would propose a diverging learning rate again and again.
    A configuration that failed through its own settings (see `failed_by_settings`) is therefore
    shown as complete with the median score so far, or with the worst one if many have failed. In
    the event log and the report, it has no score.
    """
    trials = [frozen_trial(spec, space, each, for_sampler=True) for each in configurations]
    failed = [failed_by_settings(configuration) for configuration in configurations]
    as_median = sum(failed) <= _MANY_FAILED * len(failed)
    values = values_of_failed(searched_modes(spec), trials, as_median=as_median)
    for number, configuration in enumerate(configurations):
        if failed[number] and space.contains(configuration.parameters):
            trials[number] = optuna.create_trial(
                state=TrialState.COMPLETE,
                values=values,
                **_params_and_distributions(space, configuration.parameters, for_sampler=True),
            )
    return trials


def values_of_failed(
    modes: Sequence[Mode], trials: Sequence[FrozenTrial], *, as_median: bool
) -> list[float]:
    """Return the median or the worst value of each objective over the trials that have values."""
    scored: list[Sequence[float]] = []
    for trial in trials:
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.values is not None:
            scored.append(trial.values)
    if not scored:
        return [0.0] * len(modes)  # any number works if no trial has a value
    chosen = []
    for mode, values in zip(modes, zip(*scored, strict=True), strict=True):
        worst = min(values) if sign_of(mode) > 0 else max(values)
        chosen.append(statistics.median(values) if as_median else worst)
    return chosen


def frozen_trial(
    spec: SweepSpec, space: Space, configuration: Configuration, for_sampler: bool = False
) -> FrozenTrial:
    """Return a configuration as an Optuna FrozenTrial, for a sampler or for display.

    A baseline may have values outside the ranges, which samplers do not support. For display, such
    a trial has its score and the values within the ranges; for a sampler it is an empty failed
    trial, so that trial numbers agree.
    """
    result = outcome(configuration, spec.seeds)
    modes = searched_modes(spec) if for_sampler else spec.directions
    values = [result.score, result.second][: len(modes)]
    if for_sampler:
        values = [_clipped(value) for value in values]
    if for_sampler and not space.contains(configuration.parameters):
        return optuna.create_trial(state=TrialState.FAIL)
    stops = {}
    if result.state == "PRUNED" and values[0] is not None:
        stops = {result.step or 0: values[0]}
    attributes = {}
    if not for_sampler:
        attributes = _user_attributes(configuration)
    state = TrialState[result.state]
    if None in values and state == TrialState.COMPLETE:  # recorded without the second objective
        state = TrialState.FAIL
    trial = optuna.create_trial(
        state=state,
        values=None if None in values else values,
        **_params_and_distributions(space, configuration.parameters, for_sampler),
        user_attrs=attributes,
        intermediate_values=stops,
    )
    trial.datetime_start = datetime.fromtimestamp(configuration.time)
    if result.time is not None:
        trial.datetime_complete = datetime.fromtimestamp(max(result.time, configuration.time))
    return trial


def write_study(spec: SweepSpec, configurations: Sequence[Configuration], path: Path) -> None:
    """Write the sweep as an Optuna study into a new SQLite file, for optuna-dashboard; nothing
    reads it back.

    Raises:
        ConfigError: no URL stands for the path, so optuna-dashboard cannot open it.
    """
    space = Space(spec.parameters)
    url = sqlite_url(path)
    path.unlink(missing_ok=True)
    storage = optuna.storages.RDBStorage(url)
    try:
        study = optuna.create_study(
            study_name=spec.name, storage=storage, directions=directions(spec.directions)
        )
        if len(spec.directions) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                study.set_metric_names(objective_names(spec))
        study.add_trials([frozen_trial(spec, space, each) for each in configurations])
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _params_and_distributions(space: Space, point: Parameters, for_sampler: bool) -> Parameters:
    """Return the params and distributions of a point that Optuna can represent."""
    values = {}
    ranges = {}
    for key, value in point.items():
        parameter = space.parameters[key]
        range_ = distribution(parameter, for_sampler)
        if range_ is not None and parameter.contains(value):
            ranges[key] = range_
            values[key] = _label(value)
            if isinstance(range_, IntDistribution) and not range_.log:
                values[key] = sorted(parameter.options or []).index(value)
    return {"params": values, "distributions": ranges}


def _user_attributes(configuration: Configuration) -> dict[str, Any]:
    """Return a trial's user attributes, for display."""
    scores: dict[str, float | None] = {}
    for seed, result in sorted(configuration.results.items()):
        scores[str(seed)] = None if math.isnan(result.score) else result.score
    return {"configuration": configuration.resolved, "scores": scores}


def directions(modes: Sequence[Mode]) -> list[str]:
    """Return the directions as Optuna names them."""
    return ["maximize" if sign_of(mode) > 0 else "minimize" for mode in modes]


def objective_names(spec: SweepSpec) -> list[str]:
    """Return the names of the recorded objectives."""
    second = spec.objective.second
    return [spec.objective.name] if second is None else [spec.objective.name, second.metric]


def _clipped(score: float | None) -> float | None:
    return None if score is None else max(-_MAX_SCORE, min(_MAX_SCORE, score))


def _label(option: Any) -> Any:
    """Return a choice as a value that Optuna can store: lists and mappings as JSON text."""
    if option is None or isinstance(option, bool | int | float | str):
        return option
    return json.dumps(option)
