import math
from pathlib import Path

from tests.trainer.test_files import write_steps
from trainer.tracking.shipping import lines_after, metric_values, metrics_record


def test_record_holds_step_time_and_metrics() -> None:
    record = metrics_record({"policy/loss": 0.5, "eval/accuracy/3 people": 1}, 7)
    assert record.pop("time") > 1.7e9
    assert record == {"step": 7, "policy/loss": 0.5, "eval/accuracy/3 people": 1.0}


def test_nonfinite_values_become_null_with_a_note() -> None:
    record = metrics_record(
        {"policy/loss": math.nan, "optim/grad_norm": math.inf, "policy/kl": -math.inf, "optim/lr": 0.1}, 3
    )
    assert record["policy/loss"] is record["optim/grad_norm"] is record["policy/kl"] is None
    assert record["nonfinite"] == {"policy/loss": "nan", "optim/grad_norm": "inf", "policy/kl": "-inf"}
    assert metric_values(record) == {"optim/lr": 0.1}


def test_where_later_lines_begin(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert lines_after(path, 2) == (0, [])
    offsets = write_steps(path, 1, 2, 2, 3, 4)
    cut, later = lines_after(path, 2)
    assert cut == offsets[2]
    assert [(record["step"], end) for record, end in later] == [(3, offsets[3]), (4, offsets[4])]
    assert lines_after(path, -1)[0] == 0
    assert lines_after(path, 4) == (offsets[4], [])
