import json
from pathlib import Path

import numpy as np
import pytest

from dashboards.artifacts import read_solved
from trainer.evaluation.correctness import correctness_record
from trainer.metrics.declared import CORRECTNESS_FILE


class Store:
    """MLflow with one file per run."""

    def __init__(self, records: dict[str, list[tuple[int, dict[str, list[int]]]]]) -> None:
        self.records = records

    def download_artifacts(self, run_id: str, path: str, folder: str) -> str:
        if run_id not in self.records:
            raise OSError("no such artifact")
        lines = [
            {
                "step": step,
                **correctness_record({name: (np.array(row), np.full(len(row), 4)) for name, row in sets.items()}),
            }
            for step, sets in self.records[run_id]
        ]
        target = Path(folder) / path
        target.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return str(target)


AWAY = "mlflow-artifacts:/1/run/artifacts"
RECORDS = {
    "run-a": [
        (0, {"dev": [0, 0, 0], "hard": [0, 0]}),
        (10, {"dev": [4, 0, 2], "hard": [1, 0]}),
        (20, {"dev": [4, 2, 2], "hard": [3, 0]}),
    ]
}


def test_the_last_evaluations_are_averaged_problem_by_problem() -> None:
    runs = [("a", "run-a", AWAY), ("old", "run-without-records", AWAY)]
    found = read_solved(Store(RECORDS), runs, "eval/accuracy", window=2)
    assert list(found) == ["a"]
    assert found["a"].accuracy == pytest.approx([1.0, 0.25, 0.5])
    assert found["a"].step == pytest.approx(1 / 12)  # three problems with four completions


def test_a_set_is_found_by_the_name_of_the_metric_and_other_metrics_have_none() -> None:
    runs = [("a", "run-a", AWAY)]
    hard = read_solved(Store(RECORDS), runs, "eval/accuracy/hard", window=1)
    assert hard["a"].accuracy == pytest.approx([0.75, 0.0])
    assert read_solved(Store(RECORDS), runs, "eval/reward", window=1) == {}
    assert read_solved(Store(RECORDS), runs, "eval/accuracy/unknown", window=1) == {}


def test_a_record_on_this_machine_is_read_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    Store(RECORDS).download_artifacts("run-a", CORRECTNESS_FILE, str(folder))
    runs = [("a", "run-a", folder.as_uri()), ("b", "run-b", str(folder)), ("c", "run-c", (tmp_path / "c").as_uri())]
    found = read_solved(None, runs, "eval/accuracy", window=1)
    assert list(found) == ["a", "b"]
    assert found["a"].accuracy == pytest.approx([1.0, 0.5, 0.5])
