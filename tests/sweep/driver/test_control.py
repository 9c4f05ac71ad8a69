import signal
import time

import pytest

from loptune.errors import StorageError
from sweep.driver.control import StopControl, graceful_signals
from sweep.programs.base import ResourcesSpec
from sweep.record.folder import SweepFolder
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import StorageFault, TrialReport
from sweep.space.file import find_space, load_space
from sweep.space.spec import LimitsSpec
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path):
    new_folder = SweepFolder(tmp_path, "demo")
    new_folder.root.mkdir()
    new_folder.event_log.touch()
    new_folder.space.touch()
    return new_folder


@pytest.mark.parametrize(
    ("part", "what"), [("root", "folder"), ("event_log", "event log"), ("space", "search space")]
)
def test_the_part_that_has_disappeared_is_named(folder, part, what):
    stop = control(folder)
    stop.check_folder()
    path = getattr(folder, part)
    path.rename(folder.runs_dir / "moved")
    with refused("sweep-files-gone", StorageError, names=(what, "demo")) as raised:
        stop.check_folder()
    assert raised.value.where == str(path)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


def control(folder, running=1, gpus=0, before=0, **limits):
    spec = load_space(find_space("quickstart")).model_copy(
        update={"limits": LimitsSpec.model_validate(limits)}
    )
    if gpus:
        resources = ResourcesSpec(gpus_per_trial=gpus, workers_per_trial=int(gpus))
        spec = spec.model_copy(update={"resources": resources})
    if before:
        folder.trial("c000-s0").mkdir(parents=True)
        step = f'{{"step": 1, "time/step": {3600 * before / gpus}}}\n'
        (folder.trial("c000-s0") / "metrics.jsonl").write_text(step)
    made = StopControl(SweepRecord(spec, folder), f"sweep resume {folder.name}")
    made.attach(lambda: None, lambda: running)
    return made


def test_a_spent_time_budget_lets_running_trials_stop_by_themselves(folder, clock):
    running = 2
    stopped = []
    stop = control(folder, time_budget_s=60)
    stop.attach(lambda: stopped.append(True), lambda: running)
    clock.now += 59
    assert not stop.stop_all()
    clock.now += 2
    assert not stop.stop_all()  # they still hold their resources
    assert "60 s" in stop.reason
    assert not stop.by_user
    assert folder.stop.exists()
    assert stopped == [True]
    running = 0
    assert stop.stop_all()


def test_gpu_hours_count_running_trials_and_earlier_sessions(folder, clock):
    stop = control(folder, running=2, gpus=4, before=1.0, gpu_hours=9.0)
    for _ in range(59):  # an hour of eight GPUs is spent a minute at a time
        clock.now += 60
        stop.stop_all()
    assert stop.reason is None
    for _ in range(2):
        clock.now += 60
        stop.stop_all()
    assert "9 GPU hours" in stop.reason


def test_a_trial_that_storage_interrupts_stops_the_sweep_once(folder):
    stop = control(folder)
    assert stop("trial", {"score": 1.0}) is False
    assert stop.problem is None
    assert (
        stop(
            "trial",
            TrialReport(
                storage=StorageFault(
                    what="the disk is full",
                    where="/runs, 0 MiB free",
                    hint="free some space",
                    key="",
                    code="disk-full",
                )
            ).to_result(),
        )
        is False
    )
    stop("other", TrialReport(storage=StorageFault("another", "", "", "", "")).to_result())
    assert stop.problem is not None
    assert (stop.problem.what, stop.problem.exit_code) == ("the disk is full", 4)
    assert (stop.reason, stop.by_user) == ("the sweep has stopped", False)
    assert folder.stop.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_raises(folder, number):
    stop = control(folder)
    messages = []
    before = signal.getsignal(number)
    with graceful_signals(stop, messages.append):
        signal.raise_signal(number)
        assert stop.by_user
        assert len(messages) == 1
        # the last line may never come
        assert messages[0].endswith("To resume later: sweep resume demo")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_a_folder_that_cannot_be_written_does_not_keep_the_search_from_stopping(folder):
    stop = control(folder)
    folder.stop.symlink_to(folder.root / "missing" / "stop")
    stopped = []
    stop.attach(lambda: stopped.append(True), lambda: 0)
    stop.request_stop("the time budget is spent", by_user=False)
    assert stopped == [True]


def test_an_interrupt_after_a_spent_budget_stops_at_once(folder):
    stop = control(folder)
    stop.request_stop("the time budget is spent", by_user=False)
    with graceful_signals(stop, print), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
