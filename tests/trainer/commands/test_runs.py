"""`trainer ls`, `status` and `ui`: what they read from the folders of runs."""

import json
import os
from dataclasses import replace

from loptune.run_names import lock_folder
from trainer.commands import runs
from trainer.config.schema import load_config, save_config
from trainer.tracking.mlflow_store import connect, prepare_store
from trainer.tracking.uploading import TrackingState

EVALUATIONS = [
    {"step": 0, "eval/accuracy": 0.5, "eval/reward": 1.0, "eval/completion_length": 70.0},
    {"step": 1, "reward/mean": 0.2},
    {"step": 2, "eval/accuracy": 0.75, "eval/reward": 1.5, "eval/completion_length": 72.0},
    {"step": 3, "reward/mean": 0.3},
    {"step": 4, "eval/accuracy": 0.625, "eval/reward": 1.25, "eval/completion_length": 71.0},
]


STATE = TrackingState("k", "trainer", "b", {}, ".")


def write_run(root, name, records=(), state=None, steps=(), **overrides):
    folder = root / name
    (folder / "checkpoints").mkdir(parents=True)
    save_config(load_config("tiny_kk", {"max_steps": 8, **overrides}), folder / "config.yaml")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if state is not None:
        replace(STATE, **state).save(folder)
    for step in steps:
        (folder / "checkpoints" / f"step-{step}").mkdir()
    return folder


def test_the_list_names_every_run_its_state_and_its_rule(tmp_path, typed):
    write_run(tmp_path, "b", EVALUATIONS, {"status": "KILLED"}, **{"algorithm.ar_alpha": 0.3})
    done = [*EVALUATIONS, {"step": 8, "final/accuracy": 0.6}]
    write_run(tmp_path, "a", done, {"status": "FINISHED"})
    write_run(tmp_path, "c", EVALUATIONS[:2], {"status": "FAILED"})
    write_run(tmp_path, "empty", max_steps=None)
    (write_run(tmp_path, "sweep") / "space.lock.yaml").touch()
    (write_run(tmp_path, "evaluated") / "evaluation.json").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.yaml").write_text("optim: {lrr: 1}\n")
    assert [line.split() for line in typed("trainer ls").splitlines()] == [
        ["name", "state", "step", "accuracy", "best", "rule"],
        ["a", "done", "8/8", "0.625", "0.75", "grpo"],
        ["b", "stopped", "4/8", "0.625", "0.75", "grpo", "+", "AR"],
        ["broken", "unknown", "key", "optim.lrr", "0"],
        ["c", "failed", "1/8", "0.5", "0.5", "grpo"],
        ["empty", "stopped", "0", "grpo"],
    ]


def test_an_empty_folder_says_how_to_begin(tmp_path, typed):
    assert "trainer run tiny_kk" in typed("trainer ls --runs-dir", tmp_path / "none")


def test_status_of_a_stopped_run_ends_with_the_command_that_resumes_it(tmp_path, typed):
    write_run(tmp_path, "b", EVALUATIONS, steps=(2, 4))
    lines = typed("trainer status b").splitlines()
    assert lines[0] == "b: stopped, step 4/8, grpo"
    assert [line.split() for line in lines[1:3]] == [
        ["step", "accuracy", "reward", "completion_length"],
        ["0", "0.5", "1", "70"],
    ]
    assert lines[-2:] == [
        "checkpoints: step-2 step-4",
        f"next:        trainer resume b --runs-dir {tmp_path}",
    ]
    status = json.loads(typed("trainer status b --json"))
    assert (status["state"], status["checkpoints"], len(status["evaluations"])) == (
        "stopped",
        [2, 4],
        3,
    )


def test_status_shows_completions_without_commands_for_the_terminal(tmp_path, typed):
    folder = write_run(tmp_path, "b", EVALUATIONS)
    rows = [
        {
            "step": step,
            "set": "train",
            "reward": 1.5,
            "answer": "4",
            "prompt": "2 + 2",
            "completion": f" = {step}\x1b[2J",
        }
        for step in (2, 4)
    ]
    (folder / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = typed("trainer status b --completions 1")
    assert "step 4, train, reward 1.5, answer 4\nprompt:\n    2 + 2\ncompletion:" in out
    assert "\n     = 4\\x1b[2J\n" in out and "step 2" not in out


def test_a_run_that_is_held_is_running(tmp_path, typed):
    folder = write_run(tmp_path, "b", EVALUATIONS)
    with lock_folder(folder):
        first, *_, last = typed("trainer status b").splitlines()
    assert first.startswith("b: running (process ")
    assert last == "checkpoints: none"


def test_a_run_that_trains_is_not_sent_by_another_process(tmp_path, typed):
    folder = write_run(tmp_path, "b", EVALUATIONS, {})
    before = (folder / "tracking.json").read_bytes()
    with lock_folder(folder):
        printed = typed("trainer upload b", code=5)
        assert "[name-held]" in printed and f"process {os.getpid()} " in printed
    assert (folder / "tracking.json").read_bytes() == before


def test_a_name_without_a_run_is_refused(tmp_path, typed):
    (write_run(tmp_path, "s") / "space.lock.yaml").touch()
    assert "see `trainer ls`" in typed("trainer status nope", code=3)
    assert "next:  sweep status s" in typed("trainer ui s", code=3)
    typed("trainer status ../s", code=3)


def test_the_ui_opens_at_the_run(tmp_path, monkeypatch, typed):
    served = []
    monkeypatch.setattr(
        runs,
        "serve",
        lambda uri, port, page, *words: served.append((uri, port, page(), *words)) or 0,
    )
    write_run(tmp_path, "b", EVALUATIONS, {"run_id": None})
    assert f"trainer upload {tmp_path / 'b'}" in typed("trainer ui b", code=3)
    typed("trainer ui", code=4)  # no store yet
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    prepare_store(uri)
    number = connect(uri).create_experiment("trainer")
    replace(STATE, run_id="abc").save(tmp_path / "b")
    typed("trainer ui b")
    typed("trainer ui --port 5055")
    assert served == [
        (uri, 5000, f"/#/experiments/{number}/runs/abc", "run b"),
        (uri, 5055, f"/#/experiments/{number}/runs", "all runs"),
    ]
