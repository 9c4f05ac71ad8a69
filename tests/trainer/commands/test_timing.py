import json

import pytest

from tests.trainer.test_loop import small_config
from trainer.cli import main
from trainer.commands.timing import recorded_seconds, step_seconds, table_lines
from trainer.config.schema import dump_config


def step(rollout, update, total):
    return {"time/rollout": rollout, "time/update": update, "time/step": total, "time/reward": 0.1}


def test_rows_by_hand():
    # The first step waits for what the others find.
    found = step_seconds([step(90, 90, 200), step(2, 5, 8), step(4, 7, 14)])
    assert found == pytest.approx({"sampling": 3, "training": 6, "others": 2, "total": 11})
    assert step_seconds([step(1, 2, 4)])["others"] == 1


def test_a_step_that_was_held_up_does_not_count():
    steps = [step(9, 9, 20), step(2, 5, 8), step(40, 90, 200), step(3, 4, 9)]
    assert step_seconds(steps) == {"sampling": 3, "training": 5, "others": 2, "total": 10}


def test_the_rows_of_a_record(tmp_path):
    record = tmp_path / "metrics.jsonl"
    assert recorded_seconds(record) is None
    lines = [{"step": 0, "eval/accuracy": 0.5}, {"step": 1, **step(1, 1, 3)}, {"step": 2, **step(2, 3, 6)}]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert recorded_seconds(record) == {"sampling": 2, "training": 3, "others": 1, "total": 6}


def test_the_table_has_the_papers_rows():
    # Table 6 of arXiv:2505.12929 for Qwen2.5-3B-Instruct.
    columns = {
        "w/o Lopti": {"sampling": 25.4, "training": 17.6, "others": 2.4, "total": 45.4},
        "w/ Lopti": {"sampling": 27.8, "training": 35.3, "others": 2.8, "total": 65.9},
    }
    assert table_lines(columns) == [
        "s per step  w/o Lopti   w/ Lopti",
        "sampling        25.40      27.80",
        "training        17.60      35.30",
        "others           2.40       2.80",
        "total           45.40      65.90",
    ]


def test_one_command_measures_both_and_lopti_takes_a_second_pass(tiny_policy, tmp_path, capsys):
    spec = tmp_path / "spec.yaml"
    spec.write_text(dump_config(small_config(tiny_policy)))
    assert main(["timing", str(spec), "--steps", "2", "--output", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["w/o Lopti", "w/ Lopti"]
    for rows in found.values():
        assert list(rows) == ["sampling", "training", "others", "total"]
        assert rows["total"] == pytest.approx(rows["sampling"] + rows["training"] + rows["others"])
        assert min(rows["sampling"], rows["training"]) > 0
    assert main(["timing", str(spec), "--steps", "1", "--output", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "s per step  w/o Lopti   w/ Lopti"


def test_a_run_ends_with_its_rows(tiny_policy, tmp_path, capsys):
    spec = tmp_path / "spec.yaml"
    spec.write_text(dump_config(small_config(tiny_policy, **{"max_steps": 2, "algorithm.lopti_eta": 0.5})))
    assert main(["run", str(spec), "--offline", "--name", "timed", "--runs-dir", str(tmp_path)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()[-5:]
    assert head.split() == ["s", "per", "step", "w/", "Lopti"]
    assert [row.split()[0] for row in rows] == ["sampling", "training", "others", "total"]
