import itertools
import threading
from types import SimpleNamespace

import cloudpickle
import pytest

from sweep.programs.resources import ResourcesSpec
from sweep.record.folder import SweepFolder
from sweep.trials.nodes import NodeLostError
from sweep.views import progress
from sweep.views.progress import SweepCallback

CONFIG = {
    "trial": "c000-s1",
    "configuration": 0,
    "seed": 1,
    "overrides": {"algorithm.ar_alpha": 0.3, "seed": 1},
}


def trial(**result):
    numbers = {
        "metric_analysis": {"score": {"max": 1.0}},
        "metric_n_steps": {"score": {"5": [1.0]}},
    }
    return SimpleNamespace(config=CONFIG, last_result=result, pickled_error_file=None, **numbers)


@pytest.fixture
def callback(tmp_path):
    return SweepCallback(SweepFolder(tmp_path, "demo"), ResourcesSpec(), 2, threading.Event())


def test_a_trial_is_told_in_lines(callback, capsys):
    result = {
        "step": 20,
        "total_steps": 60,
        "score": 0.612345,
        "eval/accuracy": 0.7,
        "eval/accuracy/2": 0.9,
    }
    callback.on_trial_start(trial=trial())
    callback.on_trial_result(trial=trial(), result=result)
    callback.on_trial_complete(trial=trial(**result, finished=True))
    assert capsys.readouterr().out.splitlines() == [
        "c000-s1  started    ar_alpha=0.3",
        "c000-s1  step 20/60  score 0.6123  eval/accuracy 0.7",
        "c000-s1  finished   score 0.6123",
    ]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"finished": True}, "finished"),
        ({"finished": False}, "stopped    by the scheduler"),
        ({"reason": "diverged at step 3: policy/loss is nan"}, "diverged at step 3"),
        ({"interrupted": True}, "interrupted at step 0"),
    ],
)
def test_an_end_is_told_as_what_it_is(callback, capsys, result, words):
    ended = trial(**result)
    callback.on_trial_complete(trial=ended)
    assert words in capsys.readouterr().out
    assert ended.metric_analysis == ended.metric_n_steps == {}


def test_a_trial_that_finds_no_free_resources_says_so_once(tmp_path, capsys, monkeypatch):
    four = ResourcesSpec(gpus_per_trial=4, workers_per_trial=4, cpus_per_worker=2)
    callback = SweepCallback(SweepFolder(tmp_path, "demo"), four, 2, threading.Event())
    monkeypatch.setattr(progress.ray, "available_resources", lambda: {"GPU": 2.0, "CPU": 30.0})
    monkeypatch.setattr(progress.ray, "cluster_resources", lambda: {"GPU": 8.0, "CPU": 32.0})
    clock = itertools.count(0.0, 4.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    pending = SimpleNamespace(**vars(trial()), trial_id="t", status="PENDING")
    for _ in range(10):
        callback.on_step_end(trials=[pending])
    assert (
        capsys.readouterr().out
        == "c000-s1  waits for 4 GPUs (2 of 8 free) and 8 CPUs (30 of 32 free)\n"
    )


def test_failures_of_a_trial_are_counted_and_lost_nodes_are_not(callback, tmp_path, capsys):
    folder = tmp_path / "demo" / "trials" / "c000-s1"
    folder.mkdir(parents=True)
    (folder / "failure.txt").write_text("rank 0 died: out of memory\n")
    failed = trial()
    failed.config = {**CONFIG, "attempt": 1}
    failed.max_failures = -1
    for error, count in ((None, "1 of 2"), (NodeLostError(), "not counted"), (None, "2 of 2")):
        failed.pickled_error_file = tmp_path / "error.pkl"
        failed.pickled_error_file.write_bytes(cloudpickle.dumps(error))
        callback.on_trial_recover(trial=failed)
        assert capsys.readouterr().out == f"c000-s1  retry {count}: rank 0 died: out of memory\n"
    assert "given_up" not in failed.config
    # it starts once more, to end with the reason; where it cannot even start, Tune ends it
    for last in (-1, 0):
        callback.on_trial_recover(trial=failed)
        assert (failed.config["given_up"], failed.max_failures) == (
            "rank 0 died: out of memory",
            last,
        )
    assert failed.config["attempt"] == 6
    assert capsys.readouterr().out == ""


def test_how_far_the_first_trial_is_is_told_as_it_starts(callback, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_LOOK_S", -1.0)
    folder = tmp_path / "demo" / "trials" / "c000-s1"
    folder.mkdir(parents=True)
    first = SimpleNamespace(**vars(trial()), trial_id="t", status="RUNNING")
    lines = []
    for file, text in (
        ("config.yaml", ""),
        ("stderr.log", "rank 0: ready at step 0"),
        ("metrics.jsonl", "{}"),
    ):
        callback.on_step_end(trials=[first])
        (folder / file).write_text(text)
        callback.on_step_end(trials=[first])
        lines.append(capsys.readouterr().out)
    assert lines == [f"c000-s1  {message}\n" for _, _, message in progress._BEGINNINGS]


def test_an_exception_in_a_callback_does_not_end_the_sweep(callback):
    callback.on_trial_result(trial=trial(), result={"no": "step"})  # would raise KeyError
    callback.on_trial_start(trial=None)


def test_a_callback_can_be_pickled_and_is_then_silent(callback):
    copy = cloudpickle.loads(cloudpickle.dumps(callback))
    copy.on_trial_start(trial=trial())
    copy.on_step_end(trials=[])
    assert copy.running() == 0
