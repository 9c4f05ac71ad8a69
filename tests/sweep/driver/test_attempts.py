"""Retries, attempts and giving up, without a terminal and without Ray."""

import threading
from types import SimpleNamespace

import cloudpickle
import pytest

from loptune.errors import CommandError, StorageError
from sweep.driver.attempts import AfterFailure, AttemptGate, RetryBudget, TrialEvents
from sweep.record.folder import SweepFolder
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import Failure
from sweep.space.file import load_space
from sweep.trials.nodes import NodeLostError
from tests.sweep.harness import write_space
from trainer.attempt import newest_attempt

TRIAL = "c000-s1"


class Screen:
    """A display that notes its events, or fails at each."""

    def __init__(self, fails=False):
        self.events = []
        self.fails = fails

    def __getattr__(self, event):
        def show(*values):
            if self.fails:
                raise OSError("the terminal is gone")
            self.events.append((event, *values))

        return show


def trial(**result):
    return SimpleNamespace(
        config={
            "trial": TRIAL,
            "parameters": {"rule": "GRPO"},
            "overrides": {"lr": 0.3, "seed": 1},
            "attempt": 1,
        },
        last_result=result,
        pickled_error_file=None,
        status="RUNNING",
        max_failures=-1,
        metric_analysis={"score": {"max": 1.0}},
        metric_n_steps={"score": {"5": [1.0]}},
    )


def events_of(tmp_path, screen, max_failures=2):
    folder = SweepFolder(tmp_path, "demo")
    return TrialEvents(folder, RetryBudget(max_failures), screen, threading.Event())


def fail(events, failed, tmp_path, error):
    failed.pickled_error_file = tmp_path / "error.pkl"
    content = error if isinstance(error, bytes) else cloudpickle.dumps(error)
    failed.pickled_error_file.write_bytes(content)
    events.on_trial_recover(trial=failed)


def test_a_trial_is_retried_until_its_failures_are_spent_and_then_reports():
    budget = RetryBudget(2)
    failure = Failure("rank 0 died")

    def after(trial, lost=False):
        return budget.after_failure(trial, failure, node_was_lost=lost)

    follows = [after("a", lost) for lost in (0, 1, 0, 1, 0, 0)]
    assert follows == [AfterFailure.RETRY] * 4 + [AfterFailure.REPORT, AfterFailure.END]
    assert after("b") is AfterFailure.RETRY  # each has its own
    budget = RetryBudget(0)
    assert after("a") is AfterFailure.REPORT
    assert after("a", lost=True) is AfterFailure.REPORT  # the report itself is repeated


def test_an_error_that_repeats_word_for_word_is_not_tried_a_third_time():
    exits = Failure("the command ended with 1: ValueError: 48 % 5 != 0", by_settings=True)
    budget = RetryBudget(5)
    follows = [budget.after_failure("a", exits, node_was_lost=False) for _ in range(2)]
    assert follows == [AfterFailure.RETRY, AfterFailure.REPORT]
    others = [exits, Failure(f"{exits.reason} at step 3", True), Failure("killed by SIGKILL")]
    budget = RetryBudget(5)
    for failure in [*others, others[-1], others[-1]]:  # the machine's may repeat
        assert budget.after_failure("a", failure, node_was_lost=False) is AfterFailure.RETRY


def test_a_lost_node_is_not_blamed_on_the_note_of_the_attempt_before(tmp_path):
    """The second attempt loses its node before it could remove the note of the first."""
    folder = tmp_path / "demo" / "trials" / TRIAL
    folder.mkdir(parents=True)
    screen = Screen()
    events = events_of(tmp_path, screen)
    failed = trial()
    boom = CommandError("the command ended with 1: boom")
    fail(events, failed, tmp_path, boom)
    (folder / "failure.txt").write_text(f"{boom}\n")
    fail(events, failed, tmp_path, NodeLostError("its node is gone"))
    assert "given_up" not in failed.config
    reasons = [(event[2], event[3]) for event in screen.events]
    assert reasons == [(str(boom), 1), ("its node is gone", None)]
    fail(events, failed, tmp_path, boom)
    assert failed.config["given_up"] == Failure(str(boom), by_settings=True)


@pytest.mark.parametrize("fails", [False, True])
def test_attempts_are_numbered_and_given_up_whatever_the_display_does(tmp_path, fails):
    folder = tmp_path / "demo" / "trials" / TRIAL
    folder.mkdir(parents=True)
    (folder / "failure.txt").write_text("rank 0 died: out of memory\n")
    screen = Screen(fails)
    events = events_of(tmp_path, screen)
    failed = trial()
    for error in (None, NodeLostError(), None):
        fail(events, failed, tmp_path, error)
        assert "given_up" not in failed.config
    reason = "rank 0 died: out of memory"
    if not fails:
        counts = [1, None, 2]
        assert [event[3] for event in screen.events] == counts
        assert [event[2] for event in screen.events] == [reason, "NodeLostError", reason]
    # it starts once more, to end with the reason; where it cannot even start, Tune ends it
    for most in (-1, 0):
        fail(events, failed, tmp_path, None)
        assert (failed.config["given_up"], failed.max_failures) == (Failure(reason), most)
    assert failed.config["attempt"] == 6
    # that start is not told as one
    screen.events.clear()
    events.on_trial_start(trial=failed)
    assert screen.events == []


def test_an_error_that_cannot_be_read_counts_as_a_failure(tmp_path):
    events = events_of(tmp_path, Screen(), max_failures=0)
    failed = trial()
    fail(events, failed, tmp_path, b"no pickle")
    assert failed.config["given_up"] and failed.config["attempt"] == 2


def test_a_display_hears_every_event_and_the_driver_counts_by_itself(tmp_path):
    screen = Screen()
    events = events_of(tmp_path, screen)
    running = trial(step=20, score=0.5, evaluation=1, done=False)
    waiting = trial()
    waiting.status = "PENDING"
    events.on_trial_start(trial=running)
    events.on_trial_result(trial=running, result=running.last_result)
    events.on_step_end(trials=[running, waiting])
    assert (events.running(), events.scores()) == (1, {TRIAL: 0.5})
    events.on_trial_complete(trial=running)
    assert running.metric_analysis == running.metric_n_steps == {}
    assert events._changed.is_set()
    events.on_trial_error(trial=running)
    assert [event for event, *_ in screen.events] == [
        "started",
        "evaluated",
        "polled",
        "ended",
        "failed",
    ]
    assert screen.events[0] == ("started", TRIAL, {"lr": 0.3}, {"rule": "GRPO"})


def test_events_can_be_pickled_and_are_then_silent(tmp_path):
    events = events_of(tmp_path, Screen())
    copy = cloudpickle.loads(cloudpickle.dumps(events))
    copy.on_trial_start(trial=trial())
    copy.on_step_end(trials=[])
    assert copy.running() == 0


@pytest.fixture
def sweep(tmp_path):
    record = SweepRecord(load_space(write_space(tmp_path / "s.yaml")), SweepFolder(tmp_path, "s"))
    record.folder.root.mkdir(exist_ok=True)
    return record


def test_the_gate_numbers_attempts_in_the_trials_folder(sweep):
    gate = AttemptGate(sweep, lambda: None, pytest.fail)
    assert [gate.admit(TRIAL, []) for _ in range(3)] == [1, 2, 3]
    assert newest_attempt(sweep.folder.trial(TRIAL)) == 3


def test_the_gate_stops_the_sweep_where_there_is_no_room_for_checkpoints(sweep, monkeypatch):
    stopped = []
    gate = AttemptGate(sweep, lambda: None, stopped.append)
    monkeypatch.setattr("sweep.record.disk.free_bytes", lambda path: 0)
    assert gate.admit(TRIAL, []) == 0
    assert [type(error) for error in stopped] == [StorageError]
    assert not sweep.folder.trial(TRIAL).exists()


def test_nothing_starts_without_the_sweeps_files(sweep):
    def check():
        raise StorageError("gone", code="sweep-files-gone")

    with pytest.raises(StorageError):
        AttemptGate(sweep, check, pytest.fail).admit(TRIAL, [])
    assert not sweep.folder.trial(TRIAL).exists()
