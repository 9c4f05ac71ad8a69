"""What a sampler is told of configurations that failed, and what event log and report are not."""

import math
from dataclasses import replace

import pytest
from optuna.trial import TrialState

from dashboards.statistics.scoring import Axis, Scoring
from dashboards.trial import TrialRecord
from loptune.errors import CommandError, ConfigError, DivergedError, MissingError
from sweep.search.event_log import read_event_log
from sweep.search.history import Configuration, failed_by_settings, outcome, replay
from sweep.search.searcher import ConfigurationSearcher, _final_state
from sweep.search.study import frozen_trial, propose, sampler_trials
from sweep.search.trial_report import Failure, TrialReport
from sweep.space.file import load_space
from sweep.space.points import Space, fingerprint
from sweep.space.scoring import Second
from sweep.trials.nodes import WorkerLostError
from tests.refusals import refused
from tests.sweep.harness import write_space


def make_space(tmp_path, sampler, mode="max"):
    (tmp_path / "train.py").write_text("")
    space = {
        "name": "cliff",
        "program": {"command": ["python", "train.py", "{lr}"], "defaults": {"lr": 1e-5}},
        "objective": {"metric": "eval/accuracy", "window": 1, "mode": mode},
        "parameters": {"lr": {"loguniform": [1e-6, 1e-2]}},
        "search": {"sampler": sampler, "configurations": 20},
    }
    return load_space(write_space(tmp_path / "space.yaml", space))


def tried(number, lr, score, by_settings=True):
    state = "FAIL" if math.isnan(score) else "COMPLETE"
    trial = TrialRecord(f"c{number}-s0", str(number), "0", state, score, time=0.0)
    if state == "FAIL":
        trial = replace(trial, reason="it failed", by_settings=by_settings)
    point = {"lr": lr}
    return Configuration(number, point, point, fingerprint(point), 0.0, {0: trial})


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_a_region_that_diverges_is_left(tmp_path, sampler):
    """The score rises with the learning rate up to 1e-3, where trials diverge."""
    spec = make_space(tmp_path, sampler)
    space = Space(spec.parameters)
    configurations = [tried(0, 1e-5, 0.3)]
    for number in range(1, 21):
        rate = propose(spec, space, configurations)["lr"]
        score = 0.2 + 0.1 * (math.log10(rate) + 6) if rate < 1e-3 else math.nan
        configurations.append(tried(number, rate, score))
    failed = [each.number for each in configurations if each.results[0].state == "FAIL"]
    assert len([number for number in failed if number > 8]) <= 6  # of 12
    assert max(outcome(each, [0]).score or 0 for each in configurations) > 0.4


@pytest.mark.parametrize(("mode", "worst"), [("max", 0.1), ("min", 0.9)])
def test_the_sampler_sees_a_score_and_nobody_else(tmp_path, mode, worst):
    spec = make_space(tmp_path, "gp", mode)
    space = Space(spec.parameters)
    history = [
        tried(0, 1e-5, 0.9),
        tried(1, 1e-4, 0.1),
        tried(2, 1e-3, math.nan),
        tried(3, 3e-5, 0.2),
    ]
    told = sampler_trials(spec, space, history)[2]
    assert (told.state, told.value) == (TrialState.COMPLETE, 0.2)
    # more than a quarter of the configurations have failed
    many = sampler_trials(spec, space, [*history, tried(4, 2e-3, math.nan)])
    assert [trial.value for trial in many] == [0.9, 0.1, worst, 0.2, worst]
    assert outcome(history[2], [0]).score is None
    shown = frozen_trial(spec, space, history[2])
    assert shown.state == TrialState.FAIL and shown.value is None


def test_failures_of_the_machine_teach_nothing(tmp_path):
    spec = make_space(tmp_path, "gp")
    space = Space(spec.parameters)
    for by_settings, state in ((False, TrialState.FAIL), (True, TrialState.COMPLETE)):
        failed = tried(1, 1e-3, math.nan, by_settings=by_settings)
        assert failed_by_settings(failed) is by_settings
        told = sampler_trials(spec, space, [tried(0, 1e-5, 0.9), failed])[1]
        assert told.state == state


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_a_sweep_in_which_everything_failed_goes_on_the_same_way_twice(tmp_path, sampler):
    spec = make_space(tmp_path, sampler)
    space = Space(spec.parameters)
    history = [tried(number, 10 ** (-2 - number / 10), math.nan) for number in range(12)]
    first = propose(spec, space, history)
    assert space.contains(first) and first == propose(spec, space, history)


def is_by_settings(error):
    return Failure.of(error, str(error)).by_settings


@pytest.mark.parametrize(
    ("accuracy", "tokens", "code"),
    [
        ({1: 0.5}, {1: 50.0}, "short-run"),
        ({1: 0.5, 2: 0.5}, {1: 150.0, 2: 160.0}, "late-run"),
        ({}, {1: 150.0}, "metric-not-logged"),
        ({1: 0.5}, {1: 50.0, 2: 40.0}, "axis-falls"),
    ],
)
def test_the_settings_explain_runs_without_a_score(accuracy, tokens, code):
    scoring = Scoring(("acc",), axis=Axis("tokens"), at=100.0)
    with refused(code, ConfigError) as caught:
        scoring.check_complete({"acc": accuracy, "tokens": tokens})
    assert is_by_settings(caught.value)


def test_the_settings_explain_metrics_that_are_never_logged_together():
    with refused("no-common-step", ConfigError) as caught:
        Scoring(("a", "b")).check_complete({"a": {1: 0.5}, "b": {2: 0.5}})
    assert is_by_settings(caught.value)


def test_the_settings_explain_values_that_are_not_finite():
    assert is_by_settings(DivergedError(3, "policy/loss", math.nan))
    with refused("metric-not-logged", ConfigError) as caught:
        Second("tokens", Scoring(("acc",))).check(math.nan)
    assert is_by_settings(caught.value)
    _, _, failure = _final_state(TrialReport(score=math.inf, finished=True), error=False)
    assert failure == Failure("score is inf", by_settings=True)


def test_the_settings_explain_no_failure_of_the_machine():
    assert is_by_settings(CommandError("the command ended with 1: boom"))
    for error in (
        RuntimeError("the command ended with 1: out of memory"),
        WorkerLostError("rank 0 died"),
        MissingError("no such model"),
    ):
        assert not is_by_settings(error)
    for report in (TrialReport(), TrialReport(reason="rank 0 died")):
        assert not _final_state(report, error=True)[2].by_settings


def test_the_cause_of_a_failure_is_recorded_with_the_result(tmp_path):
    """Whatever the words are: the log has the fact."""
    searcher = ConfigurationSearcher(
        make_space(tmp_path, "random"), tmp_path / "events.jsonl", lambda *_: 1, [], lambda: 9
    )
    for by_settings in (True, False):
        searcher.suggest("a")
        report = TrialReport(3, reason="any words", by_settings=by_settings)
        searcher.on_trial_complete("a", report.to_result())
    read = replay(read_event_log(tmp_path / "events.jsonl"))
    assert list(map(failed_by_settings, read)) == [True, False]
