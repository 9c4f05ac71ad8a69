"""Check that the scores of all configurations have the same unit."""

import itertools
from collections.abc import Sequence

from dashboards.sources.run_columns import RunColumns
from dashboards.trial import TrialRecord
from loptune.errors import ConfigError, listed
from loptune.parameter_names import shown

# bounds of the ratio between two typical scores; it is about 100 if only one score is in percent
_SMALLEST_RATIO = 25
_LARGEST_RATIO = 400


def check_units(trials: Sequence[TrialRecord], columns: RunColumns) -> None:
    """Reject a mix of fractions and percentages.

    Raises:
        ConfigError: the scores of some configurations look like fractions and others like
            percentages; the error shows both ranges.
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
        "convert all scores to the same unit; if they already have the same unit, add --same-unit",
        code="mixed-units",
    )


def _range(scores: dict[str, list[float]], rules: dict[str, str]) -> str:
    values = list(itertools.chain.from_iterable(scores.values()))
    names = sorted({rules[name] for name in scores})
    return f"{listed(names, 1)} ranges from {shown(min(values))} to {shown(max(values))}"
