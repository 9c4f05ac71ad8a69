import json

import pytest

import loptune as lt
from sweep.record.run_table import sweep_at, table_of_sweep
from tests.sweep.ended_sweeps import write_sweep

METRIC = "eval/accuracy"
# configuration -> seed -> score; alpha is a tenth of the configuration's number
SCORES = {0: {0: 0.50, 1: 0.52, 2: 0.51}, 1: {0: 0.60, 1: 0.63, 2: 0.61}}


@pytest.fixture
def sweep(tmp_path):
    """A sweep with three evaluations a trial, as its program and TRL recorded them."""
    written = write_sweep(tmp_path, scores={**SCORES, 2: {0: "out of memory", 1: 0.4, 2: 0.4}})
    for number, row in {**SCORES, 2: {1: 0.4, 2: 0.4}}.items():
        for seed, score in row.items():
            folder = written.folder.trial(f"c{number:03d}-s{seed}")
            lines = []
            for step, value in ((2, 0.1), (4, score), (6, score), (8, score)):
                lines.append(json.dumps({"step": step, "time": 1.0, METRIC: value, "loss": 0.1}))
            (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
            (folder / "out" / "checkpoint-2").mkdir(parents=True)
            state = {"log_history": [{"step": 2, METRIC: 0.99}, {"step": 2, "train_loss": 1.0}]}
            (folder / "out" / "checkpoint-2" / "trainer_state.json").write_text(json.dumps(state))
    return written


@pytest.mark.parametrize("part", ["", "trials"])
def test_a_sweep_is_judged_from_its_own_record(sweep, part):
    """Its trials' own files, such as TRL's, repeat or contradict what they reported."""
    judgement = lt.judge(
        str(sweep.folder.root / part),
        by="ar_alpha",
        baseline={"ar_alpha": 0},
        score=METRIC,
        fresh=True,
        where="ar_alpha<0.2",
    )
    assert judgement.verdict.difference == pytest.approx(
        (0.60 + 0.63 + 0.61 - 0.50 - 0.52 - 0.51) / 3
    )
    assert judgement.results.trials[0].step == 8


def test_a_failed_trial_counts_as_failed(sweep):
    table = table_of_sweep(sweep.folder, METRIC)
    failed = table[table.trial == "c002-s0"]
    assert list(failed.state) == ["fail"]
    assert METRIC not in failed.dropna(axis="columns")
    judgement = lt.judge(str(sweep.folder.root), by="ar_alpha", baseline="ar_alpha=0", score=METRIC)
    states = [trial.state for trial in judgement.results.trials if trial.configuration == "2"]
    assert states.count("FAIL") == 1


def test_the_direction_is_that_of_the_objective(tmp_path):
    objective = {"metric": "eval/completion_length", "mode": "min", "window": 1}
    write_sweep(tmp_path, scores=SCORES, objective=objective)
    folder = sweep_at(tmp_path / "demo")
    assert table_of_sweep(folder, "eval/completion_length").attrs["direction"] == "min"
    assert "direction" not in table_of_sweep(folder, "eval/accuracy").attrs
    assert "--window 1" in " ".join(table_of_sweep(folder, "eval/completion_length").attrs["notes"])


def test_other_folders_are_no_sweeps(tmp_path, sweep):
    assert sweep_at(sweep.folder.trials) == sweep.folder
    assert sweep_at(sweep.folder.trials / "c001-s0") is None
    assert sweep_at(tmp_path) is None
