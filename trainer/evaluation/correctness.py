"""Which problems were answered correctly, in a few bytes per evaluation: what pairs two runs problem by problem.

A line of ``correctness.jsonl`` is ``{"step": 20, "sets": {"dev": {"completions": 4, "correct": "40321"}}}``: one
character per problem in the order of the set, its correct completions in base 36; numbers instead of characters
where a problem has more than 35 completions.
"""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.files import read_json_lines

Counts = NDArray[np.int64]

_DIGITS = string.digits + string.ascii_lowercase


def correctness_record(sets: Mapping[str, tuple[Counts, Counts]]) -> dict[str, Any]:
    """JSON values for set -> (correct completions, completions) of every problem, each [P]."""
    found = {}
    for name, (correct, completions) in sets.items():
        counts: Any = correct.tolist()
        most = int(completions.max())
        if most < len(_DIGITS):
            counts = "".join(_DIGITS[count] for count in counts)
        found[name] = {"completions": most, "correct": counts}
    return {"sets": found}


def read_correctness(path: Path) -> dict[str, dict[int, tuple[NDArray[np.float64], int]]]:
    """Set -> step -> the share of correct completions of every problem, [P], and completions of each."""
    found: dict[str, dict[int, tuple[NDArray[np.float64], int]]] = {}
    for record, _ in read_json_lines(path):
        for name, of_set in record["sets"].items():
            counts = of_set["correct"]
            if isinstance(counts, str):
                counts = [_DIGITS.index(one) for one in counts]
            completions = int(of_set["completions"])
            found.setdefault(name, {})[record["step"]] = (np.array(counts) / completions, completions)
    return found
