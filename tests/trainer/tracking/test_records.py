import json
import math
from pathlib import Path

import pytest

from trainer.files import read_json_lines
from trainer.tracking.records import metric_values, metrics_record, rewind_lines


def write_steps(path: Path, *steps: int) -> list[int]:
    """Write one line per step; return the offset after each."""
    offsets = []
    with path.open("w") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "time": 1.0, "policy/loss": step / 2}) + "\n")
            offsets.append(file.tell())
    return offsets


def test_record_holds_step_time_and_metrics() -> None:
    record = metrics_record({"policy/loss": 0.5, "eval/accuracy/3 people": 1}, 7)
    assert record.pop("time") > 1.7e9
    assert record == {"step": 7, "policy/loss": 0.5, "eval/accuracy/3 people": 1.0}


def test_undeclared_name_is_refused() -> None:
    with pytest.raises(KeyError, match="policy/lost"):
        metrics_record({"policy/lost": 0.5}, 7)


def test_nonfinite_values_become_null_with_a_note() -> None:
    record = metrics_record(
        {"policy/loss": math.nan, "optim/grad_norm": math.inf, "policy/kl": -math.inf, "optim/lr": 0.1}, 3
    )
    assert record["policy/loss"] is record["optim/grad_norm"] is record["policy/kl"] is None
    assert record["nonfinite"] == {"policy/loss": "nan", "optim/grad_norm": "inf", "policy/kl": "-inf"}
    assert metric_values(record) == {"optim/lr": 0.1}


def test_rewind_drops_later_steps_and_keeps_the_offset_of_what_was_sent(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    offsets = write_steps(path, 1, 2, 3, 4, 5)
    sent, dropped = rewind_lines(path, 2, offsets[3])
    assert sent == offsets[1] == path.stat().st_size
    assert [record["step"] for record in dropped] == [3, 4]  # 5 had not been sent
    assert [record["step"] for record, _ in read_json_lines(path)] == [1, 2]


def test_rewind_before_anything_kept_was_sent(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    offsets = write_steps(path, 1, 2, 3)
    assert rewind_lines(path, 2, offsets[0]) == (offsets[0], [])
    assert path.stat().st_size == offsets[1]


def test_rewind_of_a_missing_file(tmp_path: Path) -> None:
    assert rewind_lines(tmp_path / "none.jsonl", 2, 0) == (0, [])
