from hypothesis import given
from hypothesis import strategies as st

from loptune.files import JsonLines, read_json_lines
from tests.json_values import UNHURRIED
from trainer.tracking.uploading import metrics_record, offset_after_step


def test_record_holds_step_time_and_metrics():
    record = metrics_record({"policy/loss": 0.5, "eval/accuracy/3 people": 1}, 7)
    assert record.pop("time") > 1.7e9
    assert record == {"step": 7, "policy/loss": 0.5, "eval/accuracy/3 people": 1.0}


@UNHURRIED
@given(st.lists(st.integers(0, 9)).map(sorted), st.integers(-1, 10))
def test_a_rewound_record_holds_the_lines_up_to_a_step_and_goes_on(tmp_path_factory, steps, last):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    assert offset_after_step(path, last) == 0
    lines = JsonLines(path)
    lines.append(*({"step": step} for step in steps))
    lines.cut(offset_after_step(path, last))
    lines.append({"step": last + 1})
    kept = [step for step in steps if step <= last]
    assert [record["step"] for record, _ in read_json_lines(path)] == [*kept, last + 1]
