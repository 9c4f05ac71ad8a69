"""What a sampler is told of configurations that failed, and what event log and report are not."""

import math

import pytest
from optuna.trial import TrialState

from dashboards.statistics.scoring import Axis, Scoring
from dashboards.trial import TrialRecord
from loptune.errors import ConfigError, DivergedError
from sweep.search.history import Configuration, explained_by_settings, failed_by_settings, outcome
from sweep.search.searcher import _final_state
from sweep.search.study import frozen_trial, propose, sampler_trials
from sweep.search.trial_report import TrialReport
from sweep.space.file import load_space
from sweep.space.points import Space, fingerprint
from sweep.space.scoring import Second
from tests.refusals import refused
from tests.sweep.harness import write_space

DIVERGED = "diverged at step 2: eval/accuracy is nan"


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


def tried(number, lr, score, reason=DIVERGED):
    state = "FAIL" if math.isnan(score) else "COMPLETE"
    why = reason if state == "FAIL" else ""
    trial = TrialRecord(f"c{number}-s0", str(number), "0", state, score, reason=why, time=0.0)
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
    for reason in (
        "rank 0 ran out of memory: Task was killed due to the node running low on memory",
        "the command has written no line for 60 s (limits.stall_timeout_s)",
        "crashed, with no retries left",
        "the command was killed by SIGKILL: ",
        "the command ended with 1: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB",
        "the command ended with 1: RuntimeError: [enforce fail] Cannot allocate memory",
        "ended before its first evaluation",
        "",
    ):
        failed = tried(1, 1e-3, math.nan, reason)
        assert not failed_by_settings(failed)
        told = sampler_trials(spec, space, [tried(0, 1e-5, 0.9), failed])[1]
        assert told.state == TrialState.FAIL
    crashed = "the command ended with 1: ValueError: loss is nan"
    for reason in (DIVERGED, "score is nan", "score is -inf", crashed):
        assert failed_by_settings(tried(1, 1e-3, math.nan, reason))


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_a_sweep_in_which_everything_failed_goes_on_the_same_way_twice(tmp_path, sampler):
    spec = make_space(tmp_path, sampler)
    space = Space(spec.parameters)
    history = [tried(number, 10 ** (-2 - number / 10), math.nan) for number in range(12)]
    first = propose(spec, space, history)
    assert space.contains(first) and first == propose(spec, space, history)


def reason_of(error):
    """Return the reason that a trial records for an error."""
    return getattr(error, "what", str(error))


@pytest.mark.parametrize(
    ("accuracy", "tokens", "code"),
    [
        ({1: 0.5}, {1: 50.0}, "short-run"),
        ({1: 0.5, 2: 0.5}, {1: 150.0, 2: 160.0}, "late-run"),
        ({}, {1: 150.0}, "metric-not-logged"),
        ({1: 0.5}, {1: 50.0, 2: 40.0}, "axis-falls"),
    ],
)
def test_the_reasons_of_runs_without_a_score_are_recognized(accuracy, tokens, code):
    scoring = Scoring(("acc",), axis=Axis("tokens"), at=100.0)
    with refused(code, ConfigError) as caught:
        scoring.check_complete({"acc": accuracy, "tokens": tokens})
    assert explained_by_settings(reason_of(caught.value))


def test_the_reason_of_metrics_that_are_never_logged_together_is_recognized():
    with refused("no-common-step", ConfigError) as caught:
        Scoring(("a", "b")).check_complete({"a": {1: 0.5}, "b": {2: 0.5}})
    assert explained_by_settings(reason_of(caught.value))


def test_the_reasons_of_values_that_are_not_finite_are_recognized():
    assert explained_by_settings(reason_of(DivergedError(3, "policy/loss", math.nan)))
    with refused("metric-not-logged", ConfigError) as caught:
        Second("tokens", Scoring(("acc",))).check(math.nan)
    assert explained_by_settings(reason_of(caught.value))
    _, _, reason = _final_state(TrialReport(score=math.inf, finished=True), error=False)
    assert explained_by_settings(reason)
