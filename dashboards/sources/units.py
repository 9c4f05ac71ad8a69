"""Whether the scores of all configurations are in one unit."""

import itertools
from collections.abc import Sequence

from dashboards.sources.run_columns import RunColumns
from dashboards.trial import TrialRecord
from loptune.errors import ConfigError, listed
from loptune.parameter_names import shown

# between the typical scores of two configurations: 100 if one is in percent
_SMALLEST_RATIO = 25
_LARGEST_RATIO = 400


def check_units(trials: Sequence[TrialRecord], columns: RunColumns) -> None:
    """Refuse a mixture of configurations that score as fractions and as percentages.

    Raises:
        ConfigError: names the ranges of both.
    """
    scores: dict[str, list[float]] = {}
    for trial in trials:
        if trial.state == "COMPLETE":
            scores.setdefault(trial.configuration, []).append(trial.score)
    rules = {trial.configuration: trial.rule for trial in trials}
    fractions = {name: row for name, row in scores.items() if 0 < max(row) <= 1 and min(row) >= 0}
    percentages = {name: row for name, row in scores.items() if min(row) > 1 and max(row) <= 100}
    if columns.same_unit or not fractions or not percentages:
        return
    typical = [sorted(row)[len(row) // 2] for row in (*fractions.values(), *percentages.values())]
    small = sorted(typical[: len(fractions)])
    large = sorted(typical[len(fractions) :])
    if small[-1] <= 0:
        return
    ratio = large[len(large) // 2] / small[-1]
    if not _SMALLEST_RATIO <= ratio <= _LARGEST_RATIO:
        return
    small_range = _range(fractions, rules)
    large_range = _range(percentages, rules)
    raise ConfigError(
        f"some scores look like fractions and others like percentages: {small_range}, but "
        f"{large_range}",
        columns.score,
        "give all scores in one unit; if they are, add --same-unit",
        code="mixed-units",
    )


def _range(scores: dict[str, list[float]], rules: dict[str, str]) -> str:
    values = list(itertools.chain.from_iterable(scores.values()))
    names = sorted({rules[name] for name in scores})
    return f"{listed(names, 1)} has {shown(min(values))} to {shown(max(values))}"
