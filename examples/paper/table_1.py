"""Print a row of tables 1, 4 and 7 of arXiv:2505.12929: the mean over a run's last checkpoints.

    trainer evaluate runs/NAME --last 3 --name NAME-last
    python -m examples.paper.table_1 runs/NAME-last

Each set has its accuracy, which is the mean over a problem's completions; AIME also has pass@k.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

PASS_AT_K = "aime"


def results_row(evaluations: Sequence[Path]) -> dict[str, float]:
    """Return column -> mean over the evaluations, and the mean of all columns."""
    columns: dict[str, list[float]] = defaultdict(list)
    for folder in evaluations:
        for row in json.loads((folder / "evaluation.json").read_text())["rows"]:
            if row["by"] != "all":
                continue
            columns[row["set"]].append(row["accuracy"])
            if row["set"] == PASS_AT_K and "pass_at_k" in row:
                columns[f"{row['set']} pass@{row['k']}"].append(row["pass_at_k"])
    means = {name: fmean(values) for name, values in columns.items()}
    return {**means, "mean": fmean(means.values())}


def main(arguments: Sequence[str]) -> int:
    """Print the row in percent."""
    for name, value in results_row([Path(folder) for folder in arguments]).items():
        print(f"{name:<28}{100 * value:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
