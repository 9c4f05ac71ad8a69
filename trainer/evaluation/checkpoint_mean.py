"""The mean over a run's last checkpoints, as arXiv:2505.12929 reports every accuracy."""

from collections.abc import Sequence
from statistics import fmean

from trainer.evaluation.breakdown import EvaluationRow

# columns that are the same at every checkpoint, and the interval over problems
_NOT_AVERAGED = ("set", "by", "value", "problems", "completions", "k", "low", "high")


def mean_rows(of_checkpoints: Sequence[Sequence[EvaluationRow]]) -> list[EvaluationRow]:
    """Return the rows of one evaluation with each measured column averaged over checkpoints.

    The rows have no interval: checkpoints of one run are not independent. Rows that are missing at
    any checkpoint are left out.
    """
    by_part = [{_part(row): row for row in rows} for rows in of_checkpoints]
    means = []
    for first in of_checkpoints[0]:
        part = _part(first)
        if not all(part in rows for rows in by_part):
            continue
        mean = {
            column: fmean(rows[part][column] for rows in by_part)
            for column in first
            if column not in _NOT_AVERAGED
        }
        means.append({**first, "low": None, "high": None, **mean})
    return means


def _part(row: EvaluationRow) -> tuple[str, str, str]:
    return row["set"], row["by"], row["value"]
