"""`max_hours`: a run stops at a step boundary, and a resumed run goes on with what is left."""

import json
import threading

import pytest

from loptune.errors import ConfigError
from sweep.space.file import find_space, load_space
from tests.trainer.test_cli import TINY_RUN
from trainer import time_budget
from trainer.loop import Trainer
from trainer.run_folder import RunFolder
from trainer.time_budget import TimeBudget, trained_hours


class FakeTimer:
    """A timer that ends when the test says so."""

    last: "FakeTimer"

    def __init__(self, seconds, end):
        self.seconds = seconds
        self.end = end
        self.cancelled = False
        FakeTimer.last = self

    def start(self):
        pass

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def timer(monkeypatch):
    monkeypatch.setattr(time_budget, "threading", type("Fake", (), {"Timer": FakeTimer}))
    return FakeTimer


def test_a_spent_budget_asks_to_stop_once_and_ends_with_its_block(timer):
    stops = []
    budget = TimeBudget(2.0, trained=0.5)
    with budget.watch(lambda: stops.append(1)):
        assert timer.last.seconds == 1.5 * 3600
        timer.last.end()
    assert (budget.spent, stops, timer.last.cancelled) == (True, [1], True)


def test_without_a_budget_nothing_waits(monkeypatch):
    threads = threading.active_count()
    with TimeBudget(None).watch(lambda: None):
        assert threading.active_count() == threads


def test_hours_count_up_to_the_step_that_is_resumed(tmp_path):
    folder = RunFolder(tmp_path)
    records = [
        {"step": 0, "time/evaluation": 600.0},
        {"step": 1, "time/step": 1800.0},
        {"step": 1, "time/evaluation": 1200.0},
        {"step": 2, "time/step": 3600.0},
    ]
    folder.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert trained_hours(folder, 1) == 1.0
    assert trained_hours(folder, 2) == 2.0


def test_a_run_out_of_time_prints_a_command_that_goes_on(typed, tmp_path, timer, monkeypatch):
    step = Trainer.training_step

    def timed_step(trainer):
        metrics = step(trainer)
        if trainer.step == 1:
            timer.last.end()
        return metrics

    monkeypatch.setattr(Trainer, "training_step", timed_step)
    shown = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: shown.extend(map(str, words)))
    typed(
        "trainer run tiny_kk --offline --name r",
        *TINY_RUN,
        "max_steps=3",
        "max_hours=0.5",
        code=130,
    )
    monkeypatch.undo()
    outcome = shown[-1].splitlines()
    assert "max_hours=0.5" in outcome[0]
    assert outcome[1] == f"trainer resume r --runs-dir {tmp_path} max_hours=1"
    typed(outcome[1])
    assert (tmp_path / "r" / "checkpoints" / "step-3").is_dir()


def test_a_spent_budget_is_refused_before_torch_with_the_command(typed, tmp_path, timer):
    typed("trainer run tiny_kk --offline --name r", *TINY_RUN, "max_steps=2", "max_hours=1")
    record = {"step": 2, "time/step": 3600.0}
    with RunFolder(tmp_path / "r").metrics.open("a") as metrics:
        metrics.write(json.dumps(record) + "\n")
    printed = typed("trainer resume r max_steps=3", code=2)
    assert "[time-budget-spent]" in printed
    assert f"trainer resume r --runs-dir {tmp_path} max_hours=2" in printed


@pytest.mark.parametrize(
    "override", ["trainer.max_hours=1", "parameters.max_hours={uniform: [1.0, 2.0]}"]
)
def test_a_sweep_refuses_the_budget_of_a_run(override):
    with pytest.raises(ConfigError) as refused:
        load_space(find_space("quickstart"), [override])
    assert refused.value.code == "max-hours-in-sweep"
