import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from sweep.search.history import outcome
from sweep.space.spec import FINISHED_KEY, SCORE, STEP
from tests.sweep.search.instant_sweeps import ALPHA, ETA, drain, ended, score_of, searcher_in, study_in
from tests.sweep.spaces import make_spec, parameters


def test_choices_that_are_no_scalars(tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        parameters={"optim.betas": {"choice": [[0.9, 0.99], [0.9, 0.999]]}},
        baselines=[],
        seeds=[0],
        search={"sampler": "tpe", "configurations": 2},
    )
    searcher = searcher_in(tmp_path, spec, mirror=True)
    chosen = [s["overrides"]["optim.betas"] for s in drain(searcher, result=lambda _: ended(0.5))]
    assert sorted(chosen) == [[0.9, 0.99], [0.9, 0.999]]
    assert {t.params["optim.betas"] for t in study_in(tmp_path).trials} == {"[0.9, 0.99]", "[0.9, 0.999]"}


# How the results of two seeds become what the study is told.
STOPPED = {SCORE: 0.2, STEP: 40}
MAPPED: dict[str, tuple[Any, Any, TrialState, float | None, dict[int, float]]] = {
    "mean": (ended(0.5), ended(0.8), TrialState.COMPLETE, 0.65, {}),
    "stopped early": (STOPPED, ended(0.6), TrialState.PRUNED, 0.4, {40: 0.4}),
    "both stopped": (STOPPED, {SCORE: 0.3, STEP: 20}, TrialState.PRUNED, 0.25, {20: 0.25}),
    "failed and stopped": (STOPPED, None, TrialState.FAIL, None, {}),
    "nan": (ended(0.9), ended(math.nan), TrialState.FAIL, None, {}),
}


@pytest.mark.parametrize("case", MAPPED)
def test_what_the_study_is_told(case: str, tmp_path: Path) -> None:
    first, second, state, value, intermediate = MAPPED[case]
    spec = make_spec(tmp_path, search={"configurations": 0})
    searcher = searcher_in(tmp_path, spec, mirror=True)
    for trial_id, result in (("a", first), ("b", second)):
        searcher.suggest(trial_id)
        assert study_in(tmp_path).trials[0].state == TrialState.RUNNING
        searcher.on_trial_complete(trial_id, result, error=result is None)
    told = study_in(tmp_path).trials[0]
    assert told.state == state
    assert told.value == (None if value is None else pytest.approx(value))
    assert told.intermediate_values == pytest.approx(intermediate)
    assert "nan" not in (tmp_path / "events.jsonl").read_text().lower().replace("is nan", "")
    found = outcome(searcher.configurations[0], spec.seeds)
    assert found.state == state.name


def test_study_file_is_what_the_ledger_says(tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        parameters=parameters(algorithm__ar_alpha={"uniform": [0.1, 0.5]}),
        baselines=[{ALPHA: 0.0, "lopti": False}, {ALPHA: 0.2, "lopti": True, ETA: 0.5}],
    )

    def result(suggestion: dict[str, Any]) -> dict[str, Any]:
        stopped = suggestion["trial"] == "c003-s1"
        return {SCORE: score_of(suggestion), STEP: 20 if stopped else 60, FINISHED_KEY: not stopped}

    searcher = searcher_in(tmp_path, spec, mirror=True)
    drain(searcher, result=result)
    in_place = study_in(tmp_path).trials
    searcher.close()
    (tmp_path / "study.db").unlink()
    searcher_in(tmp_path, spec, mirror=True).close()
    rebuilt = study_in(tmp_path).trials

    assert [trial.number for trial in in_place] == [0, 1, 2, 3, 4]
    assert in_place[3].state == TrialState.PRUNED
    for trial, again, configuration in zip(in_place, rebuilt, searcher.configurations, strict=True):
        assert trial.state == again.state and trial.values == again.values
        assert trial.params == again.params and trial.user_attrs == again.user_attrs
        assert trial.intermediate_values == again.intermediate_values
        assert trial.user_attrs["configuration"] == configuration.resolved
        assert trial.user_attrs["origin"] == configuration.origin
        inside = {k: v for k, v in configuration.parameters.items() if configuration.number or k != ALPHA}
        assert trial.params == inside
    # The baseline at alpha 0 lies outside of the range: its score is shown, and no sampler learns from it.
    assert in_place[0].value == pytest.approx(1 - 0.3 - 0.005)


def test_a_reader_that_locks_the_study_does_not_stop_the_sweep(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, search={"configurations": 0}, seeds=[0])
    searcher = searcher_in(tmp_path, spec, mirror=True)
    searcher.suggest("a")
    reader = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    reader.execute("BEGIN EXCLUSIVE")
    searcher.on_trial_complete("a", ended(0.5))
    reader.close()
    assert study_in(tmp_path).trials[0].value == 0.5


def test_a_copy_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "study.db" / "in the way").mkdir(parents=True)
    spec = make_spec(tmp_path)
    assert len(drain(searcher_in(tmp_path, spec, mirror=True))) == 10
    assert caplog.text.count("study.db stays as it is, optuna-dashboard is out of date") == 1


def test_a_removed_copy_is_written_anew(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, search={"configurations": 0}, seeds=[0])
    searcher = searcher_in(tmp_path, spec, mirror=True)
    searcher.suggest("a")
    (tmp_path / "study.db").unlink()
    searcher.on_trial_complete("a", ended(0.5))
    assert study_in(tmp_path).trials[0].value == 0.5


def test_a_session_writes_the_file_anew_and_then_in_place(tmp_path: Path) -> None:
    spec, file = make_spec(tmp_path), tmp_path / "study.db"
    first = searcher_in(tmp_path, spec, mirror=True)
    first.suggest("a")
    first.on_trial_complete("a", ended(0.5))
    first.close()
    file.write_bytes(file.read_bytes()[:5000])

    second = searcher_in(tmp_path, spec, mirror=True)
    made = file.stat().st_ino
    second.suggest("b")
    second.on_trial_complete("b", ended(0.7))
    second.close()
    assert file.stat().st_ino == made
    (told, *_) = study_in(tmp_path).trials
    assert told.user_attrs["scores"] == {"0": 0.5, "1": 0.7}
    assert told.state == TrialState.COMPLETE
