"""Number the configurations of a table of runs, and find its baseline."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from dashboards.sources.conditions import equal
from dashboards.sources.run_columns import RunColumns
from loptune.errors import ConfigError, listed, shortened
from loptune.parameter_names import short_names, shown
from loptune.yaml_document import nearest

_MAX_CHARS = 80  # length limit of a value in a message
_MAX_SPELLINGS = 4
_MAX_LISTED_CHARS = 600  # length limit of a list of configurations
# values of the columns that define a configuration
Point = tuple[Any, ...]


def numbered(runs: pd.DataFrame, columns: RunColumns) -> dict[Point, str]:
    """Return each configuration's number, in the order of their first rows."""
    points = dict.fromkeys(runs[columns.point].itertuples(index=False, name=None))
    return {point: str(number) for number, point in enumerate(points)}


def arm_names(points: Iterable[Point], columns: RunColumns) -> dict[Point, str]:
    """Return each configuration's arm, such as ``loss=dapo``."""
    keys = [columns.names[column] for column in columns.by]
    names = short_names(keys)
    texts = {}
    for point in points:
        values = zip(keys, point[: len(keys)], strict=True)
        texts[point] = " ".join(f"{names[column]}={shown(value)}" for column, value in values)
    return texts


def notes_on_spelling(points: Iterable[Point]) -> list[str]:
    """Return a note on configurations that may be one: their names differ only in case, blanks,
    hyphens and underscores.
    """
    spellings: dict[Point, list[str]] = {}
    for point in points:
        letters = []
        for value in point:
            is_text = isinstance(value, str)
            letters.append(re.sub(r"[\s_-]", "", value).casefold() if is_text else value)
        spellings.setdefault(tuple(letters), []).append(" ".join(map(shown, point)))
    notes = []
    for names in spellings.values():
        if len(names) > 1:
            notes.append(
                f"Compared as different configurations: {listed(names, _MAX_SPELLINGS)}. If they "
                "are the same, use one spelling."
            )
    return notes


def arms_and_baseline(
    numbers: Mapping[Point, str], arm: Mapping[Point, str], columns: RunColumns
) -> tuple[tuple[str, ...], str | None]:
    """Return the arms, baseline first, and the baseline's configuration number (None if settings
    are tuned). If the baseline is a number, the arms keep their order and the first configuration's
    number is returned.

    Raises:
        ConfigError: the baseline uses a column that is not in --by, or it does not match exactly
            one arm.
    """
    if columns.against is not None:  # the baseline is a number, so no configuration is the baseline
        names = list(dict.fromkeys(arm.values()))
        return tuple(names), next(iter(numbers.values()))
    for column in columns.baseline:
        if column not in columns.by:
            raise ConfigError(
                f"the baseline uses {column}, which is not in --by",
                "--baseline",
                nearest(column, columns.by),
                code="baseline-not-in-by",
            )
    matching = _matching(numbers, arm, columns)
    first = {arm[point] for point in matching}
    if len(first) != 1:
        raise _no_baseline(len(first), arm.values(), columns)
    baseline_first = dict.fromkeys([*first, *arm.values()])
    number = None if columns.tuned else numbers[matching[0]]
    return tuple(baseline_first), number


def _matching(
    points: Iterable[Point], arm: Mapping[Point, str], columns: RunColumns
) -> list[Point]:
    """Return the configurations with the baseline's values. If they belong to several arms, such as
    1.1 and 1.10, return only the ones that are spelled like the baseline.
    """
    matching = []
    spelled = []
    for point in points:
        settings = dict(zip(columns.by, point, strict=False))
        if all(equal(settings[column], value) for column, value in columns.baseline.items()):
            matching.append(point)
            if all(
                str(settings[column]) == str(value) for column, value in columns.baseline.items()
            ):
                spelled.append(point)
    has_several = len({arm[point] for point in matching}) > 1
    return spelled if has_several and spelled else matching


def _no_baseline(count: int, arms: Iterable[str], columns: RunColumns) -> ConfigError:
    """Return the error that no arm, or more than one, matches the baseline."""
    if not columns.baseline:
        message = f"no baseline is given, and there are {count} configurations"
    elif count:
        message = f"the baseline {text_of(columns.baseline)} matches {count} configurations"
    else:
        message = f"the baseline {text_of(columns.baseline)} matches no configuration"
    names = "; ".join(shortened(name, _MAX_CHARS) for name in dict.fromkeys(arms))
    return ConfigError(
        message,
        "--baseline",
        f"choose among: {shortened(names, _MAX_LISTED_CHARS)}",
        code="no-baseline",
    )


def text_of(parameters: Mapping[str, Any]) -> str:
    """Return the parameters of a configuration on one line, with short names and values."""
    names = short_names(list(parameters))
    texts = []
    for name, value in parameters.items():
        texts.append(f"{names[name]}={shortened(shown(value), _MAX_CHARS)}")
    return " ".join(texts)
