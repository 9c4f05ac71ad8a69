"""The process that runs the batches of a campaign, with its trials replaced."""

import io
import json
import threading
from typing import ClassVar

import pytest

from sweep.driver import pool
from sweep.driver.control import StopControl
from sweep.driver.pool import Settings, _Pool
from sweep.gate.batch import Batch, batch_space, read_results, unfinished
from sweep.gate.spec import PROGRAM
from sweep.record.folder import SweepFolder
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import TrialReport
from sweep.space.file import dump_space, load_space
from sweep.trials.cluster import Node

SPACE = """
name: toy
program: {command: [python, train.py, "{lr}", "{seed}"], defaults: {lr: 0.1}}
objective: {metric: score, window: 1}
baselines: [{}]
search: {configurations: 0}
limits: {max_failures: 1}
"""


class Slot:
    """Ends each trial at once; the first attempt at seed 13 fails."""

    together = threading.Barrier(2)
    waits = False
    failed: ClassVar[list[str]] = []

    def __init__(self, group):
        pass

    def take(self, plan, config):
        self.trial = f"{plan.folder.name} {config['seed']}"
        self.seed = config["seed"]

    def step(self):
        if self.waits:
            self.together.wait(timeout=60)  # until a trial of another batch runs, too
        if self.seed == 13 and self.trial not in self.failed:
            self.failed.append(self.trial)
            raise RuntimeError("out of memory")
        report = TrialReport(step=1, score=float(self.seed), evaluation=1, finished=True)
        return report.to_result()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "reserve", lambda resources: None)
    monkeypatch.setattr(pool, "PooledTrial", Slot)
    monkeypatch.setattr(Slot, "failed", [])
    (tmp_path / "train.py").write_text("")
    camp = tmp_path / "camp"
    (camp / "spaces").mkdir(parents=True)
    (camp / "runs").mkdir()
    (camp / PROGRAM).write_text(SPACE)
    return camp


def request(folder, name, seeds, command=None):
    batch = Batch(name=name, settings={}, command=command, seeds=seeds)
    path = folder / "spaces" / f"{name}.yaml"
    path.write_text(dump_space(batch_space(folder, batch)))
    return json.dumps({"name": name, "place": str(folder.parent)}) + "\n"


def serve(folder, monkeypatch, *lines):
    """Return the answers to lines of standard input, by batch, and the control."""
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(lines)))
    answers = {}
    root = folder / "runs"
    spec = load_space(folder / PROGRAM)
    control = StopControl(SweepRecord(spec, SweepFolder(folder, root.name)), "again")
    _Pool(
        Settings(folder=str(folder), resume="again", cpus=2),
        answer=lambda name, error: answers.update({name: error}),
        nodes=[Node(2, 0)],
        control=control,
        scratch=folder,
    ).serve()
    return answers, control


def test_trials_of_two_batches_run_side_by_side(folder, monkeypatch):
    monkeypatch.setattr(Slot, "waits", True)
    lines = [request(folder, name, (seed,)) for seed, name in enumerate(("one", "two"))]
    answers, _ = serve(folder, monkeypatch, *lines, "null\n")
    assert answers == {"one": None, "two": None}
    assert read_results(folder / "runs", "two").scores == {1: 1.0}


def test_a_batch_that_cannot_run_keeps_no_other_from_running(folder, monkeypatch):
    broken = request(folder, "broken", (0,), command=["nowhere", "{lr}", "{seed}"])
    answers, control = serve(folder, monkeypatch, broken, request(folder, "one", (2,)), "null\n")
    assert answers["broken"]["code"] == "no-command"
    assert (answers["one"], control.stopped) == (None, False)
    assert unfinished(folder / "runs", "broken") == "it has not started"


def test_a_trial_that_failed_is_tried_again_in_its_slot(folder, monkeypatch):
    answers, _ = serve(folder, monkeypatch, request(folder, "one", (13, 14)), "null\n")
    assert answers == {"one": None}
    assert read_results(folder / "runs", "one").scores == {13: 13.0, 14: 14.0}
    assert Slot.failed == ["one 13"]


def test_trials_stop_when_the_process_that_needs_them_has_ended(folder, monkeypatch):
    answers, control = serve(folder, monkeypatch, request(folder, "one", (1,)))
    assert control.by_user
    assert set(answers) == {"one"}
    assert (folder / "runs" / "one" / "stop").exists()
