"""The searcher: order, what keeps its place, and a driver killed at any byte."""

import math
import pickle
import random

import pytest

from loptune.errors import StorageError
from loptune.files import read_json_lines
from sweep.search.history import TrialKey, replay
from sweep.search.searcher import ConfigurationSearcher
from sweep.search.trial_report import TrialReport
from tests.refusals import refused
from tests.sweep.search.instant_sweeps import ALPHA, ETA, drain, ended, searcher_in
from tests.sweep.spaces import make_spec


def test_baselines_come_first_and_every_seed_once(tmp_path):
    searcher = searcher_in(tmp_path)
    suggestions = drain(searcher)
    assert [s["trial"] for s in suggestions] == [
        f"c{c:03d}-s{seed}" for c in range(5) for seed in (0, 1)
    ]
    assert suggestions[0]["parameters"] == {
        "algorithm.advantage": "grpo",
        ALPHA: 0.0,
        "lopti": False,
    }
    assert suggestions[3]["overrides"] == {
        "algorithm.advantage": "grpo",
        ALPHA: 0.3,
        ETA: 0.5,
        "seed": 1,
    }
    for first, second in zip(suggestions[::2], suggestions[1::2], strict=True):
        assert first["parameters"] == second["parameters"]
    assert [c.number for c in searcher.configurations] == [0, 1, 2, 3, 4]


def test_extending_a_finished_sweep(tmp_path):
    spec = make_spec(tmp_path)
    first = drain(searcher_in(tmp_path, spec))
    more = spec.model_copy(update={"search": spec.search.model_copy(update={"configurations": 5})})
    second = drain(searcher_in(tmp_path, more))
    assert [s["configuration"] for s in second] == [5, 5, 6, 6]
    assert not {s["trial"] for s in first} & {s["trial"] for s in second}
    seeds = more.model_copy(update={"seeds": [0, 1, 2]})
    third = drain(searcher_in(tmp_path, seeds))
    assert [(s["configuration"], s["seed"]) for s in third] == [(c, 2) for c in range(7)]


def test_a_finalist_that_is_decided_gets_no_more_seeds(tmp_path):
    searcher = searcher_in(tmp_path)
    searcher.suggest("a")
    searcher.suggest("b")
    searcher.suggest("c")  # the second configuration
    results = [
        {"configuration": "0", "outcome": "better"},
        {"configuration": "1", "outcome": "undecided"},
    ]
    searcher.event_log.append({"event": "analysis", "results": results, "time": 0.0})
    resumed = searcher_in(tmp_path)
    assert [key.name for key in resumed.open_trials] == ["c001-s0", "c001-s1"]


def test_reasons_of_failure_are_kept(tmp_path):
    searcher = searcher_in(tmp_path)
    diverged = TrialReport(3, reason="diverged at step 3: loss is nan").to_result()
    stopped = TrialReport(20, 0.5).to_result()
    results = [diverged, ended(math.nan), None, {}, ended(math.inf), stopped]
    for number, result in enumerate(results):
        searcher.suggest(str(number))
        searcher.on_trial_complete(str(number), result, error=result is None)
    recorded = [c.results[seed] for c in searcher.configurations for seed in (0, 1)]
    assert [result.state for result in recorded] == ["FAIL"] * 5 + ["PRUNED"]
    assert (recorded[5].score, recorded[5].step) == (0.5, 20)
    reasons = [result.reason for result in recorded]
    assert reasons[0] == "diverged at step 3: loss is nan"
    assert reasons[1].endswith(" nan") and reasons[4].endswith(" inf")
    assert len(set(reasons)) == len(reasons) and reasons[5] == ""


def test_an_event_log_that_was_moved_away_is_not_made_anew(tmp_path):
    first = searcher_in(tmp_path)
    drain(first)
    path = tmp_path / "events.jsonl"
    path.rename(tmp_path / "moved")
    with refused("not-written", StorageError, names=(str(path),)):
        ConfigurationSearcher(
            first.spec, path, lambda *_: 1, configurations=first.configurations, capacity=lambda: 1
        )
    assert not path.exists()


def test_a_trial_that_stops_with_the_sweep_keeps_its_place(tmp_path):
    spec = make_spec(tmp_path)
    searcher = searcher_in(tmp_path, spec)
    for trial_id in "abcde":
        searcher.suggest(trial_id)
    searcher.on_trial_complete("a", TrialReport(10, 0.5, stopped=True).to_result())
    searcher.stop()
    assert searcher.suggest("f") == searcher.FINISHED
    searcher.on_trial_complete("b", TrialReport(10, 0.5).to_result())
    searcher.on_trial_complete("c", error=True)
    searcher.on_trial_complete("d", ended(0.5))
    names = [s["trial"] for s in drain(searcher_in(tmp_path, spec))]
    assert names[:4] == ["c000-s0", "c000-s1", "c001-s0", "c002-s0"]
    assert "c001-s1" not in names


def test_unknown_and_repeated_completions_are_ignored(tmp_path):
    searcher = searcher_in(tmp_path)
    searcher.suggest("a")
    searcher.on_trial_complete("a", ended(0.5))
    lines = (tmp_path / "events.jsonl").read_text()
    searcher.on_trial_complete("a", ended(0.9))
    searcher.on_trial_complete("never issued", ended(0.9))
    assert (tmp_path / "events.jsonl").read_text() == lines


ARMS = {"sampler": "tpe", "tune_within": "algorithm.advantage", "configurations": 3, "startup": 2}


@pytest.mark.parametrize(
    "changes", [{}, {"search": ARMS, "baselines": []}], ids=["one study", "a study an arm"]
)
def test_killed_at_any_byte_every_trial_ends_exactly_once(tmp_path, changes):
    spec = make_spec(tmp_path, **changes)
    path = tmp_path / "events.jsonl"
    expected = {s["trial"]: s["parameters"] for s in drain(searcher_in(tmp_path, spec), parallel=1)}
    event_log = path.read_bytes()
    lines = [position + 1 for position, byte in enumerate(event_log) if byte == ord("\n")]
    # Every line end, the bytes around it, and random bytes in between.
    near = {p + d for p in [0, *lines] for d in (-1, 0, 1) if 0 <= p + d <= len(event_log)}
    for cut in sorted(near | set(random.Random(0).sample(range(len(event_log)), 40))):
        path.write_bytes(event_log[:cut])
        drain(searcher_in(tmp_path, spec), parallel=1)
        records = [record for record, _ in read_json_lines(path)]
        results = [
            TrialKey(r["configuration"], r["seed"]).name for r in records if r["event"] == "result"
        ]
        assert sorted(results) == sorted(expected), f"cut at byte {cut}"
        # Trials ran one at a time here, so the new driver must propose exactly what the old one
        # did.
        again = {
            TrialKey(c.number, s).name: c.parameters for c in replay(records) for s in spec.seeds
        }
        assert again == expected, f"cut at byte {cut}"


def test_a_lost_event_log_ends_the_sweep(tmp_path):
    folder = tmp_path / "kk"
    folder.mkdir()
    searcher = searcher_in(folder, make_spec(tmp_path))
    searcher.suggest("a")
    (folder / "events.jsonl").rename(tmp_path / "moved")
    with refused("not-written", StorageError, names=("events.jsonl",)):
        searcher.on_trial_complete("a", ended(0.5))
    # Tune swallows what `on_trial_complete` raises, so the searcher says it again.
    with pytest.raises(StorageError):
        searcher.on_trial_result("b", {})
    with pytest.raises(StorageError):
        searcher.suggest("c")
    assert not (folder / "events.jsonl").exists()


def test_a_check_before_a_trial_may_end_the_search(tmp_path):
    spec = make_spec(tmp_path)
    asked = []

    def before_trial(trial, running):
        asked.append((trial, list(running)))
        if trial == "c001-s0":
            searcher.stop()

    searcher = searcher_in(tmp_path, spec, before_trial)
    trials = [searcher.suggest(str(number)) for number in range(4)]
    assert [suggestion["trial"] for suggestion in trials[:2]] == ["c000-s0", "c000-s1"]
    assert trials[2] == trials[3] == searcher.FINISHED
    assert asked == [("c000-s0", []), ("c000-s1", ["c000-s0"]), ("c001-s0", ["c000-s0", "c000-s1"])]
    events = [record["event"] for record, _ in read_json_lines(tmp_path / "events.jsonl")]
    assert events == ["configuration", "trial", "trial", "configuration"]
    pickle.dumps(searcher)  # as Tune does
    fresh = searcher_in(tmp_path, spec)
    assert [key.name for key in fresh.open_trials][:3] == ["c000-s0", "c000-s1", "c001-s0"]
