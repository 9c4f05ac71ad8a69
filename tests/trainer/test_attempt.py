"""Two attempts of one trial write in turns, as where a node was cut off and its trial began again
elsewhere.
"""

import json
import os
from dataclasses import replace

import pytest

from loptune.errors import StorageError
from tests.refusals import refused
from tests.trainer.tracking.store import config_for, context_for, history, runs_of, sqlite_store
from trainer.attempt import Attempt, SupersededError, begin_attempt, newest_attempt
from trainer.checkpoint.on_disk import damaged_files, write_checkpoint
from trainer.config.schema import load_config
from trainer.loop import Trainer
from trainer.parallel.ranks import Parallel
from trainer.tracking.tracker import Tracker


def test_of_two_attempts_that_write_in_turns_only_the_newer_one_counts(tmp_path):
    uri = sqlite_store(tmp_path)
    context = context_for(tmp_path)
    metrics = context.run_dir / "metrics.jsonl"
    root = context.run_dir / "checkpoints"

    def attempt(number):
        begin_attempt(context.run_dir, number)
        return Tracker(config_for(uri), replace(context, attempt=number))

    def checkpoint(number, step, meanwhile=lambda: None):
        def write(folder):
            (folder / "state").write_text(f"of attempt {number}")
            meanwhile()

        write_checkpoint(root, step, write, Parallel(), Attempt(context.run_dir, number))

    old = attempt(newest_attempt(context.run_dir) + 1)
    for step in (1, 2, 3):
        old.log({"policy/loss": step / 10}, step)
    checkpoint(1, 2)
    old.uploader.send_all()
    # a process that stands still between asking and writing
    frozen = os.open(metrics, os.O_WRONLY | os.O_APPEND)

    started = []
    with refused("newer-attempt", SupersededError):
        checkpoint(1, 4, meanwhile=lambda: started.append(attempt(2)))
    (new,) = started
    new.rewind(2)
    os.write(frozen, b'{"step": 9}\n')
    os.close(frozen)
    for step in (3, 4):
        new.log({"policy/loss": step / 10}, step)
        for late in (
            lambda step=step: old.log({"policy/loss": 9.0}, step),
            lambda step=step: old.log_completions([{"prompt": "late"}], step),
            lambda: old.uploader.finish("KILLED"),
            lambda step=step: checkpoint(1, step),
            lambda: Tracker(config_for(uri), replace(context, attempt=1)),
        ):
            with pytest.raises(SupersededError):
                late()
    checkpoint(2, 4)
    assert old.close("KILLED") is False
    assert new.close("FINISHED") is True

    steps = [(step, step / 10) for step in (1, 2, 3, 4)]
    assert [
        (line["step"], line["policy/loss"]) for line in map(json.loads, metrics.open())
    ] == steps
    (run,) = runs_of(uri)
    assert (run.info.status, history(uri, run.info.run_id, "policy/loss")) == ("FINISHED", steps)
    assert [(path.name, (path / "state").read_text()) for path in sorted(root.iterdir())] == [
        ("step-2", "of attempt 1"),
        ("step-4", "of attempt 2"),
    ]
    assert damaged_files(root / "step-4") == []


def test_a_run_that_no_sweep_began_asks_nobody(tmp_path):
    begin_attempt(tmp_path, 3)
    Attempt(tmp_path).check()
    Attempt(tmp_path, 3).check()
    Attempt(tmp_path / "not there", 1).check()  # what cannot be written says so by itself


def test_a_starting_trial_does_not_recreate_a_vanished_sweep(tmp_path):
    context = replace(context_for(tmp_path / "gone"), attempt=1)
    for begin in (
        lambda: begin_attempt(context.run_dir, 1),
        lambda: Tracker(config_for("unused"), context),
        lambda: Trainer(load_config("tiny_kk"), context),
    ):
        with pytest.raises((StorageError, FileNotFoundError), match="No such file"):
            begin()
        assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("content", [b"", b"2\n3", b"\xff", None])
def test_a_damaged_number_is_refused_by_its_file(tmp_path, content):
    number = tmp_path / "attempt"
    if content is None:
        number.mkdir()
    else:
        number.write_bytes(content)
    with pytest.raises(StorageError) as raised:
        begin_attempt(tmp_path, 2)
    assert raised.value.where == str(number)
    assert "remove the file" in raised.value.hint
