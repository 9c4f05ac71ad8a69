"""Per-problem correctness, which allows paired comparisons of two runs.

A line of ``correctness.jsonl`` is ``{"step": 20, "sets": {"dev": {"completions": 4, "correct": [4,
0, 3]}}}``: the number of correct completions of each problem, in dataset order.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loptune.errors import StorageError
from loptune.files import read_records

Counts = NDArray[np.int64]
# set -> step -> (fraction of correct completions of each problem [P], completions per problem)
Correctness = dict[str, dict[int, tuple[NDArray[np.float64], int]]]


def correctness_record(sets: Mapping[str, tuple[Counts, Counts]]) -> dict[str, Any]:
    """Return a JSON record from set -> (correct, completions) counts per problem, each [P]."""
    return {
        "sets": {
            name: {"completions": int(completions.max()), "correct": correct.tolist()}
            for name, (correct, completions) in sets.items()
        }
    }


def read_correctness(path: Path) -> Correctness:
    """Read the per-problem correctness of a run's evaluations; empty if there is no record.

    Raises:
        StorageError: the record is damaged or cannot be read.
    """
    by_set: Correctness = {}
    try:
        for record in read_records(path):
            for name, of_set in record["sets"].items():
                completions = int(of_set["completions"])
                by_set.setdefault(name, {})[record["step"]] = (
                    np.array(of_set["correct"]) / completions,
                    completions,
                )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StorageError(
            f"invalid correctness record: {error!r}",
            str(path),
            "remove the file",
            code="record-damaged",
        ) from None
    return by_set
