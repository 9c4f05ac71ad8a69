"""The process that runs the batches of a campaign, with its trials replaced."""

import io
import json
import sys
import threading
import time
from typing import ClassVar

import pytest

from loptune.errors import CommandError
from sweep.driver import pool
from sweep.driver.control import POLL_S, StopControl
from sweep.driver.pool import Settings, _Pool
from sweep.gate.batch import Batch, batch_space, read_results, unfinished
from sweep.gate.spec import PROGRAM
from sweep.record.folder import SweepFolder
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import GIVEN_UP, TrialReport
from sweep.space.file import dump_space, load_space
from sweep.trials import pooled
from sweep.trials.cluster import Node
from trainer.tracking.inputs import recorded_files

SPACE = """
name: toy
program: {command: [python, train.py, "{lr}", "{seed}"], defaults: {lr: 0.1}}
objective: {metric: score, window: 1}
baselines: [{}]
search: {configurations: 0}
limits: {max_failures: 1}
"""


class Slot:
    """Ends each trial at once. The first attempt at seed 13 fails, and every attempt at seed 17."""

    together = threading.Barrier(2)
    waits = False
    lasts = 0.0  # seconds
    failed: ClassVar[list[str]] = []

    def take(self, plan, config):
        self.trial = f"{plan.folder.name} {config['seed']}"
        self.seed = config["seed"]
        self.given_up = config.get(GIVEN_UP)

    def step(self):
        time.sleep(self.lasts)
        if self.given_up:
            return TrialReport(1, **self.given_up._asdict()).to_result()
        if self.waits:
            self.together.wait(timeout=60)  # until a trial of another batch runs, too
        if self.seed == 13 and self.trial not in self.failed:
            self.failed.append(self.trial)
            raise RuntimeError("out of memory")
        if self.seed == 17:
            self.failed.append(self.trial)
            raise CommandError("the command ended with 1: it has diverged")
        report = TrialReport(step=1, score=float(self.seed), evaluation=1, finished=True)
        return report.to_result()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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


def test_a_stop_while_batches_are_opened_stops_all_of_them(folder, monkeypatch):
    """Requests wait in a queue: a batch that is opened later must not train."""
    lines = [request(folder, name, (seed,)) for seed, name in enumerate(("one", "two", "three"))]
    opened = pool.check_program
    stops = []

    def stopped_meanwhile(spec):
        opened(spec)
        if spec.name == "two":
            stops[0].request_stop("Ctrl-C", by_user=True)

    class Noted(StopControl):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            stops.append(self)

    monkeypatch.setattr(f"{__name__}.StopControl", Noted)
    monkeypatch.setattr(pool, "check_program", stopped_meanwhile)
    answers, _ = serve(folder, monkeypatch, *lines, "null\n")
    assert set(answers) == {"one", "two", "three"}
    assert [answers[name]["code"] for name in ("two", "three")] == ["batch-stopped"] * 2
    assert unfinished(folder / "runs", "two")
    assert unfinished(folder / "runs", "three") == "it has not started"


def test_a_batch_that_was_stopped_tells_why_and_what_continues_it(folder, monkeypatch):
    lines = [request(folder, name, (seed, seed + 20)) for seed, name in enumerate(("one", "two"))]
    step = Slot.step

    def stopped(slot):
        if slot.trial == "one 0":
            (folder / "runs" / "one" / "stop").touch()
            time.sleep(2 * POLL_S)
            return TrialReport(step=1, stopped=True).to_result()
        return step(slot)

    monkeypatch.setattr(Slot, "step", stopped)
    answers, control = serve(folder, monkeypatch, *lines, "null\n")
    assert (answers["one"]["kind"], answers["one"]["code"]) == ("StoppedError", "batch-stopped")
    assert "`sweep stop`" in answers["one"]["what"] and "again" in answers["one"]["hint"]
    assert (answers["two"], control.stopped) == (None, False)


def test_resources_that_do_not_become_free_fail_the_trials_and_not_the_pool(folder, monkeypatch):
    class Group:
        def wait(self, timeout):
            return False

    removed = []
    monkeypatch.setattr(pooled, "placement_group", lambda bundles, strategy: Group())
    monkeypatch.setattr(pooled, "remove_placement_group", removed.append)
    monkeypatch.setattr(pool, "PooledTrial", pooled.PooledTrial)
    answers, _ = serve(folder, monkeypatch, request(folder, "one", (1,)), "null\n")
    assert answers == {"one": None}
    results = read_results(folder / "runs", "one")
    assert (results.scores, results.failed) == ({}, {})
    assert "not free" in results.killed[1]
    assert len(removed) == 2  # both attempts


def test_a_batch_that_has_ended_when_it_is_stopped_is_complete(folder, monkeypatch):
    step = Slot.step

    def stopped(slot):
        (folder / "runs" / "one" / "stop").touch()
        time.sleep(2 * POLL_S)
        return step(slot)

    monkeypatch.setattr(Slot, "step", stopped)
    answers, _ = serve(folder, monkeypatch, request(folder, "one", (1,)), "null\n")
    assert answers == {"one": None}


def test_a_batch_that_is_resumed_does_not_repeat_a_failure_that_settings_explain(
    folder, monkeypatch
):
    """A second chance would let a proposal that fails now and then pass, if it is interrupted."""
    serve(folder, monkeypatch, request(folder, "one", (17, 18)), "null\n")
    attempts = list(Slot.failed)
    assert set(read_results(folder / "runs", "one").failed) == {17}
    serve(folder, monkeypatch, request(folder, "one", (17, 18)), "null\n")
    assert Slot.failed == attempts


def test_modules_of_a_batch_are_those_of_its_checkout(folder, monkeypatch, tmp_path):
    """An editable install, here a folder of the import path, has the files that people edit."""
    for root in ("edited", "checkout"):
        module = tmp_path / root / "src" / "trained" / "start.py"
        module.parent.mkdir(parents=True)
        module.write_text("")
    (tmp_path / "checkout/src/trained/added.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "edited" / "src")
    before = list(sys.path)
    lines = []
    for name, module in (("one", "start"), ("two", "added")):
        command = ["python", "-m", f"trained.{module}", "{lr}", "{seed}"]
        line = json.loads(request(folder, name, (0,), command=command))
        line["place"] = str(tmp_path / "checkout")
        line["variables"] = {"PYTHONPATH": str(tmp_path / "checkout" / "src")}
        lines.append(json.dumps(line) + "\n")
    answers, _ = serve(folder, monkeypatch, *lines, "null\n")
    assert answers == {"one": None, "two": None}
    assert set(recorded_files(folder / "runs" / "one")) == {"src/trained/start.py"}
    assert sys.path == before


def test_the_time_limit_of_a_batch_does_not_count_while_others_train(folder, monkeypatch):
    path = folder / PROGRAM
    path.write_text(path.read_text().replace("max_failures: 1", "time_budget_s: 1"))
    monkeypatch.setattr(Slot, "lasts", 0.7)
    lines = [request(folder, name, (seed, seed + 20)) for seed, name in enumerate(("a", "b", "c"))]
    answers, _ = serve(folder, monkeypatch, *lines, "null\n")
    assert answers == {"a": None, "b": None, "c": None}
    assert not any(unfinished(folder / "runs", name) for name in answers)


def test_a_command_without_metrics_is_reported_while_it_runs(folder, monkeypatch, capsys):
    monkeypatch.setattr("sweep.views.event_lines._SILENT_S", 0)
    monkeypatch.setattr(Slot, "lasts", 1.5)
    serve(folder, monkeypatch, request(folder, "one", (1,)), "null\n")
    assert "one  c000-s1  has logged no metric" in capsys.readouterr().out
