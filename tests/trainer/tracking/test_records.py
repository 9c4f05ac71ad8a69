from pathlib import Path

from tests.trainer.test_files import write_steps
from trainer.tracking.shipping import end_of_step, metrics_record


def test_record_holds_step_time_and_metrics() -> None:
    record = metrics_record({"policy/loss": 0.5, "eval/accuracy/3 people": 1}, 7)
    assert record.pop("time") > 1.7e9
    assert record == {"step": 7, "policy/loss": 0.5, "eval/accuracy/3 people": 1.0}


def test_where_later_lines_begin(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert end_of_step(path, 2) == 0
    offsets = write_steps(path, 1, 2, 2, 3, 4)
    assert [end_of_step(path, step) for step in (-1, 2, 4)] == [0, offsets[2], offsets[4]]
