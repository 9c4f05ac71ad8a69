"""From a point of the search space to the trainer's configuration.

A point is a mapping of the active parameters, switches included, to their values. A parameter is active
where all of its ``when`` conditions hold; one whose condition names an inactive parameter is inactive too.
"""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sweep.space.parameters import ParameterSpec, same_value
from sweep.space.spec import SweepSpec
from trainer.config.schema import TrainConfig, apply_overrides, changed_data, dotted_keys, value_of
from trainer.errors import ConfigError
from trainer.rules.kinds import KINDS

Parameters = dict[str, Any]
_ABSENT = object()


def is_switch(key: str) -> bool:
    """Whether a parameter only serves conditions: a name without a dot that the trainer does not have."""
    return "." not in key and key not in TrainConfig.model_fields


def allowed_values(condition: Any) -> list[Any]:
    """The values that satisfy one entry of ``when``: a value, or any of a list."""
    return list(condition) if isinstance(condition, list) else [condition]


class Space:
    """The parameters in an order in which every condition is decided before it is needed.

    Raises:
        ValueError: conditions lead in a circle; the message names it.
        KeyError: a condition names a parameter that does not exist.
    """

    def __init__(self, parameters: Mapping[str, ParameterSpec]) -> None:
        self.parameters: dict[str, ParameterSpec] = {}
        for key in parameters:
            self._place(key, parameters, ())

    def _place(self, key: str, parameters: Mapping[str, ParameterSpec], path: tuple[str, ...]) -> None:
        if key in path:
            raise ValueError(" -> ".join([*path[path.index(key) :], key]))
        for parent in parameters[key].when:
            self._place(parent, parameters, (*path, key))
        self.parameters.setdefault(key, parameters[key])

    @property
    def trainer_keys(self) -> list[str]:
        """The parameters that are keys of the trainer's configuration."""
        return [key for key in self.parameters if not is_switch(key)]

    def is_active(self, key: str, decided: Mapping[str, Any]) -> bool:
        """Whether the conditions of a parameter hold, given the active parameters before it."""
        return all(
            parent in decided and any(same_value(decided[parent], value) for value in allowed_values(values))
            for parent, values in self.parameters[key].when.items()
        )

    def walk(self, choose: Callable[[str, ParameterSpec], Any]) -> Parameters:
        """The point made by asking ``choose`` for every parameter that turns out to be active."""
        point: Parameters = {}
        for key, parameter in self.parameters.items():
            if self.is_active(key, point):
                point[key] = choose(key, parameter.given(point))
        return point

    def contains(self, point: Mapping[str, Any]) -> bool:
        """Whether every value of a point lies in its range (a baseline's may not)."""
        return all(self.parameters[key].contains(value) for key, value in point.items())

    def resolve(self, point: Mapping[str, Any], base: TrainConfig) -> Parameters:
        """The value of every searched trainer key: the point's, else ``else:``, else the preset's.

        The keys are the same for all points of a space, so that trials can be compared column by column; the
        parameters of a rule that a point does not have are left out.
        """
        chosen: Parameters = {}
        for key in self.trainer_keys:
            parameter = self.parameters[key]
            if key in point:
                chosen[key] = point[key]
            elif parameter.has_otherwise:
                chosen[key] = parameter.otherwise
        data = changed_data(base, chosen)
        values = {key: chosen[key] if key in chosen else _lookup(data, key) for key in self.trainer_keys}
        return {key: value for key, value in values.items() if value is not _ABSENT}

    def complete(self, baseline: Mapping[str, Any], base: TrainConfig) -> Parameters:
        """The point of a baseline; trainer keys it does not name have the preset's value.

        Raises:
            KeyError: an active switch has no value, or the preset has none for an active key.
        """
        named = {key: value for key, value in baseline.items() if not is_switch(key)}
        below = changed_data(base, named)

        def choose(key: str, parameter: ParameterSpec) -> Any:
            value = baseline.get(key, parameter.value if parameter.kind == "value" else _lookup(below, key))
            if value is _ABSENT:
                raise KeyError(key)
            return value

        return self.walk(choose)

    def grid(self, values: Callable[[ParameterSpec], list[Any]]) -> Iterator[Parameters]:
        """Every combination of ``values(parameter)`` that the conditions allow, each once."""

        def extend(point: Parameters, rest: list[str]) -> Iterator[Parameters]:
            if not rest:
                yield point
            elif not self.is_active(rest[0], point):
                yield from extend(point, rest[1:])
            else:
                for value in values(self.parameters[rest[0]].given(point)):
                    yield from extend({**point, rest[0]: value}, rest[1:])

        return extend({}, list(self.parameters))

    @property
    def is_finite(self) -> bool:
        """Whether every parameter that may be active has a list of values."""
        return all(one.options is not None or not self._may_hold(one.when) for one in self.parameters.values())

    def _may_hold(self, conditions: Mapping[str, Any]) -> bool:
        return all(
            any(self.parameters[parent].contains(value) for value in allowed_values(values))
            for parent, values in conditions.items()
        )

    def grid_size(self, limit: int) -> int:
        """The number of points of a finite space, counted no further than ``limit``."""
        return sum(1 for _ in itertools.islice(self.grid(lambda parameter: parameter.options or []), limit))


def _lookup(data: Mapping[str, Any], key: str) -> Any:
    """Return the value behind a dotted key of a dumped configuration, of a rule its name, or a marker for none."""
    place: Any = data
    for part in key.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return _ABSENT
        place = place[part]
    return place["name"] if key in KINDS else place


def fingerprint(resolved: Mapping[str, Any]) -> str:
    """A hash of the searched values of a configuration; 1 and 1.0 are the same."""
    text = json.dumps({key: _plain(value) for key, value in resolved.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def trial_config(base: TrainConfig, overrides: Mapping[str, Any], seed: int) -> TrainConfig:
    """The configuration that one trial trains with."""
    return apply_overrides(base, {**overrides, "seed": seed}, source="trial")


def input_configs(spec: SweepSpec) -> Iterator[TrainConfig]:
    """The base configuration, and one for each data set, reward and rule that is searched."""
    yield spec.base
    for key, parameter in spec.parameters.items():
        for value in parameter.extremes if key.startswith(("data.", "reward.", "evaluation.", *KINDS)) else ():
            with contextlib.suppress(ConfigError):  # possible only beside other values
                yield apply_overrides(spec.base, {key: value})


def searched_values(spec: SweepSpec, key: str) -> list[Any]:
    """The values that a search gives a trainer key, of a range its ends; the base's where it is not searched."""
    parameter = spec.parameters.get(key)
    return [value_of(spec.base, key)] if parameter is None else parameter.extremes


def is_section(key: str) -> bool:
    """Whether a dotted key names a section of the trainer's configuration rather than a value."""
    keys = dotted_keys()
    return key not in keys and any(name.startswith(f"{key}.") for name in keys)


def _plain(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
