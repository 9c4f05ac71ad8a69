"""Turn points of the search space into configurations of a program.

A point is a mapping of the active parameters, switches included, to their values. A parameter is
active if all of its ``when`` conditions are true; a condition on an inactive parameter is false.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sweep.programs.base import ABSENT, Overrides, SearchableProgram
from sweep.space.parameters import ParameterSpec, same_value

Parameters = dict[str, Any]


def allowed_values(condition: Any) -> list[Any]:
    """Return the values that satisfy one entry of ``when``: a value, or any of a list."""
    return list(condition) if isinstance(condition, list) else [condition]


class MissingValueError(Exception):
    """A baseline leaves out an active key for which the program has no default."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class Space:
    """Parameters in topological order of their conditions.

    Raises:
        ValueError: circular conditions; the message names the cycle.
        KeyError: a condition names a parameter that does not exist.
    """

    def __init__(self, parameters: Mapping[str, ParameterSpec]) -> None:
        self.parameters: dict[str, ParameterSpec] = {}
        for key in parameters:
            self._place(key, parameters, ())

    def _place(
        self, key: str, parameters: Mapping[str, ParameterSpec], path: tuple[str, ...]
    ) -> None:
        if key in path:
            raise ValueError(" -> ".join([*path[path.index(key) :], key]))
        for parent in parameters[key].when:
            self._place(parent, parameters, (*path, key))
        self.parameters.setdefault(key, parameters[key])

    def is_active(self, key: str, decided: Overrides) -> bool:
        """Return whether the conditions of a parameter are true, given the values of earlier active
        parameters.
        """
        for parent, values in self.parameters[key].when.items():
            if parent not in decided or not _is_among(decided[parent], allowed_values(values)):
                return False
        return True

    def walk(self, choose: Callable[[str, ParameterSpec], Any]) -> Parameters:
        """Build a point by calling ``choose`` for every active parameter."""
        point: Parameters = {}
        for key, parameter in self.parameters.items():
            if self.is_active(key, point):
                point[key] = choose(key, parameter.given(point))
        return point

    def count_tuned(self) -> int:
        """Return the number of active parameters with several values, when every switch has its
        first value.
        """
        tuned: list[str] = []

        def choose(key: str, parameter: ParameterSpec) -> Any:
            options = parameter.options
            if options is None or len(options) > 1:
                tuned.append(key)
            return options[0] if options else None

        self.walk(choose)
        return len(tuned)

    def contains(self, point: Overrides) -> bool:
        """Return whether every value of a point is in its range; a baseline may have values
        outside.
        """
        return all(self.parameters[key].contains(value) for key, value in point.items())

    def could_propose(self, point: Overrides) -> bool:
        """Return whether a search could propose a point: it has all active parameters and no
        other, with values in their ranges.
        """
        outside = object()  # equal to no value

        def value_of(key: str, parameter: ParameterSpec) -> Any:
            if key in point and parameter.contains(point[key]):
                return point[key]
            return outside

        return self.walk(value_of) == point

    def resolve(self, point: Overrides, program: SearchableProgram) -> Parameters:
        """Return the value of every searched key that the program has: from the point, else from
        ``else:``, else the default of the program.

        All points of a space have the same keys, so trials can be compared column by column.
        Parameters of update rules other than the point's are left out.
        """
        keys = [key for key in self.parameters if program.has(key)]
        chosen: Parameters = {}
        for key in keys:
            parameter = self.parameters[key]
            if key in point:
                chosen[key] = point[key]
            elif parameter.has_else:
                chosen[key] = parameter.otherwise
        values = {**program.values(chosen, keys), **chosen}
        return {key: value for key, value in values.items() if value is not ABSENT}

    def complete(self, baseline: Overrides, program: SearchableProgram) -> Parameters:
        """Complete a baseline to a point: a missing key gets the constant of its ``value`` or
        ``by``, else the default of the program.

        Raises:
            MissingValueError: an active switch has no value, or the program has no default for an
                active key.
        """
        named = {key: value for key, value in baseline.items() if program.has(key)}
        below = program.values(named, list(self.parameters))

        def choose(key: str, parameter: ParameterSpec) -> Any:
            value = below[key]
            if key in baseline:
                value = baseline[key]
            elif parameter.kind == "value":
                value = parameter.value
            if value is ABSENT:
                raise MissingValueError(key)
            return value

        return self.walk(choose)

    def distinct(
        self, baselines: Sequence[Overrides], program: SearchableProgram
    ) -> dict[str, Parameters]:
        """Return the distinct baselines as complete points: fingerprint -> point."""
        points = {}
        for baseline in baselines:
            point = self.complete(baseline, program)
            points[fingerprint(self.resolve(point, program))] = point
        return points

    def grid(self, values: Callable[[ParameterSpec], list[Any]]) -> Iterator[Parameters]:
        """Yield every distinct combination of ``values(parameter)`` that the conditions allow."""

        def extend(point: Parameters, rest: list[str]) -> Iterator[Parameters]:
            if not rest:
                yield point
            elif not self.is_active(rest[0], point):
                yield from extend(point, rest[1:])
            else:
                for value in values(self.parameters[rest[0]].given(point)):
                    yield from extend({**point, rest[0]: value}, rest[1:])

        return extend({}, list(self.parameters))

    def points(self) -> Iterator[Parameters]:
        """Yield the points of a finite space."""
        return self.grid(lambda parameter: parameter.options or [])

    @property
    def is_finite(self) -> bool:
        """Whether every parameter that may be active has a list of values."""
        for key, parameter in self.parameters.items():
            may_be_active = not self.excluding(key)
            if may_be_active and parameter.options is None:
                return False
        return True

    def excluding(self, key: str) -> str:
        """Return a parameter none of whose values satisfies all conditions of ``key`` and its
        parents; empty if there is no such conflict.
        """
        left: dict[str, list[Any]] = {}  # parent -> values that satisfy the conditions so far
        waiting = [key]
        while waiting:
            conditions = self.parameters[waiting.pop()].when
            for parent, values in conditions.items():
                allowed = allowed_values(values)
                options = left.get(parent, self.parameters[parent].options or [])
                left[parent] = [option for option in options if _is_among(option, allowed)]
                waiting.append(parent)
        for parent, options in left.items():
            if not options:
                return parent
        return ""

    def grid_size(self, limit: int) -> int:
        """Return the number of points of a finite space, at most ``limit``."""
        return len(list(itertools.islice(self.points(), limit)))


def _is_among(value: Any, allowed: Iterable[Any]) -> bool:
    return any(same_value(value, other) for other in allowed)


def fingerprint(resolved: Overrides) -> str:
    """Return a hash of the searched values of a configuration; 1 and 1.0 are the same."""
    text = json.dumps({key: _plain(value) for key, value in resolved.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
