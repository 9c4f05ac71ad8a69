"""The searcher: order, truth of what the study is told, samplers, and a driver killed at any byte."""

import itertools
import json
import math
import os
import random
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from sweep.search.history import TrialKey, best, outcome, replay
from sweep.search.searcher import ConfigurationSearcher
from sweep.space.spec import FINISHED_KEY, INTERRUPTED_KEY, REASON_KEY, SCORE, STEP, SweepSpec
from tests.sweep.spaces import make_spec, parameters
from trainer.errors import StorageError
from trainer.files import read_json_lines

ALPHA, ETA = "algorithm.ar_alpha", "algorithm.lopti_eta"
NUMERIC = {
    ALPHA: {"uniform": [0.0, 0.5]},
    "optim.lr": {"loguniform": [1e-6, 1e-3]},
    "rollout.group_size": {"int": [4, 16, 4]},
    "algorithm.name": {"choice": ["grpo", "reinforce_plus_plus"]},
    "lopti": {"choice": [False, True]},
    ETA: {"uniform": [0.2, 0.9], "when": {"lopti": True}, "else": 0.0},
}
GRID = {
    ALPHA: {"quniform": [0.0, 0.4, 0.1]},
    "lopti": {"choice": [False, True]},
    ETA: {"choice": [0.3, 0.5], "when": {"lopti": True}, "else": 0.0},
}
SAMPLERS = ("tpe", "random", "grid", "gp", "nsga2")


def ended(score: float, **more: Any) -> dict[str, Any]:
    return {SCORE: score, STEP: 60, FINISHED_KEY: True, **more}


def score_of(suggestion: dict[str, Any]) -> float:
    """Best at alpha 0.3; a little worse with a larger seed."""
    return 1 - abs(float(suggestion["parameters"][ALPHA]) - 0.3) - 0.01 * int(suggestion["seed"])


def searcher_in(folder: Path, spec: SweepSpec, *, mirror: bool = False) -> ConfigurationSearcher:
    return ConfigurationSearcher(spec, folder / "events.jsonl", folder / "study.db" if mirror else None)


def drain(
    searcher: ConfigurationSearcher,
    parallel: int = 2,
    result: Callable[[dict[str, Any]], dict[str, Any]] = lambda suggestion: ended(score_of(suggestion)),
) -> list[dict[str, Any]]:
    """Run a sweep of instant trials, `parallel` at a time, the oldest ending first."""
    running: list[tuple[str, dict[str, Any]]] = []
    seen: list[dict[str, Any]] = []
    for number in itertools.count():
        suggestion = searcher.suggest(f"{id(searcher)}-{number}")
        if suggestion == searcher.FINISHED and not running:
            return seen
        if suggestion != searcher.FINISHED:
            running.append((f"{id(searcher)}-{number}", suggestion))
            seen.append(suggestion)
        if suggestion == searcher.FINISHED or len(running) == parallel:
            trial_id, oldest = running.pop(0)
            searcher.on_trial_complete(trial_id, result(oldest))
    raise AssertionError


def study_in(folder: Path, name: str = "kk") -> optuna.Study:
    return optuna.load_study(study_name=name, storage=f"sqlite:///{folder / 'study.db'}")


def space_for(sampler: str, tmp_path: Path, **search: Any) -> SweepSpec:
    return make_spec(
        tmp_path,
        parameters=GRID if sampler == "grid" else NUMERIC,
        baselines=[],
        search={"sampler": sampler, "configurations": 8, "seed": 5, "startup": 3, **search},
        seeds=[0],
    )


def test_baselines_come_first_and_every_seed_once(tmp_path: Path) -> None:
    searcher = searcher_in(tmp_path, make_spec(tmp_path))
    suggestions = drain(searcher)
    assert [s["trial"] for s in suggestions] == [f"c{c:03d}-s{seed}" for c in range(5) for seed in (0, 1)]
    assert suggestions[0]["parameters"] == {"algorithm.name": "grpo", ALPHA: 0.0, "lopti": False}
    assert suggestions[3]["overrides"] == {"algorithm.name": "grpo", ALPHA: 0.3, ETA: 0.5, "seed": 1}
    for first, second in zip(suggestions[::2], suggestions[1::2], strict=True):
        assert first["parameters"] == second["parameters"]
    assert [c.origin for c in searcher.configurations] == ["baseline"] * 2 + ["search"] * 3


@pytest.mark.parametrize("sampler", SAMPLERS)
class TestEverySampler:
    def test_values_in_range_and_conditions_respected(self, sampler: str, tmp_path: Path) -> None:
        spec = space_for(sampler, tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no sampler may clutter the table
            searcher = searcher_in(tmp_path, spec)
            suggestions = drain(searcher)
        assert len(suggestions) == 8
        assert len({c.fingerprint for c in searcher.configurations}) == 8
        for suggestion in suggestions:
            point = suggestion["parameters"]
            assert searcher.space.contains(point)
            assert (ETA in point) == point["lopti"]
            assert suggestion["overrides"][ETA] == (point[ETA] if point["lopti"] else 0.0)
            assert set(suggestion["overrides"]) == {*searcher.space.trainer_keys, "seed"}

    def test_same_seed_same_configurations(self, sampler: str, tmp_path: Path) -> None:
        runs = []
        for name, seed in (("a", 5), ("b", 5), ("c", 6)):
            folder = tmp_path / name
            folder.mkdir()
            suggestions = drain(searcher_in(folder, space_for(sampler, folder, seed=seed)))
            runs.append([s["parameters"] for s in suggestions])
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]

    def test_a_new_driver_proposes_what_the_old_one_would_have(self, sampler: str, tmp_path: Path) -> None:
        spec = space_for(sampler, tmp_path)
        (tmp_path / "whole").mkdir()
        whole = [s["parameters"] for s in drain(searcher_in(tmp_path / "whole", spec), parallel=1)]
        parts = []
        for number in range(8):  # a driver that dies after every trial
            searcher = searcher_in(tmp_path, spec)
            suggestion = searcher.suggest(str(number))
            searcher.on_trial_complete(str(number), ended(score_of(suggestion)))
            parts.append(suggestion["parameters"])
        assert parts == whole


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2"])
def test_sampler_learns(sampler: str, tmp_path: Path) -> None:
    spec = space_for(sampler, tmp_path, configurations=40, startup=8)
    alphas = [s["parameters"][ALPHA] for s in drain(searcher_in(tmp_path, spec), parallel=1)]
    distances = [abs(alpha - 0.3) for alpha in alphas]
    assert sum(distances[-15:]) / 15 < sum(distances[:8]) / 8


def test_grid_goes_through_everything_and_skips_what_a_baseline_has_run(tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        parameters=GRID,
        baselines=[{ALPHA: 0.0, "lopti": False}],
        search={"sampler": "grid"},
        seeds=[0],
    )
    suggestions = drain(searcher_in(tmp_path, spec))
    points = {json.dumps(s["parameters"], sort_keys=True) for s in suggestions}
    assert len(points) == len(suggestions) == 5 * (1 + 2)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_small_space_is_searched_without_repeats_and_ends(sampler: str, tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        parameters=GRID,
        baselines=[],
        search={"sampler": sampler, "configurations": 50, "startup": 3},
        seeds=[0],
    )
    assert len(drain(searcher_in(tmp_path, spec))) == 15


def test_extending_a_finished_sweep(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    first = drain(searcher_in(tmp_path, spec))
    more = spec.model_copy(update={"search": spec.search.model_copy(update={"configurations": 5})})
    second = drain(searcher_in(tmp_path, more))
    assert [s["configuration"] for s in second] == [5, 5, 6, 6]
    assert not {s["trial"] for s in first} & {s["trial"] for s in second}
    seeds = more.model_copy(update={"seeds": [0, 1, 2]})
    third = drain(searcher_in(tmp_path, seeds))
    assert [(s["configuration"], s["seed"]) for s in third] == [(c, 2) for c in range(7)]


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
MAPPED: dict[str, tuple[Any, Any, TrialState, float | None, dict[int, float]]] = {
    "mean": (ended(0.5), ended(0.8), TrialState.COMPLETE, 0.65, {}),
    "stopped early": (
        {SCORE: 0.2, STEP: 20, FINISHED_KEY: False},
        ended(0.6),
        TrialState.PRUNED,
        0.4,
        {20: 0.4},
    ),
    "both stopped": (
        {SCORE: 0.2, STEP: 40},
        {SCORE: 0.3, STEP: 20},
        TrialState.PRUNED,
        0.25,
        {20: 0.25},
    ),
    "one died": (ended(0.9), None, TrialState.FAIL, None, {}),
    "nan": (ended(0.9), ended(math.nan), TrialState.FAIL, None, {}),
    "inf": (ended(math.inf), ended(0.9), TrialState.FAIL, None, {}),
    "minus inf, stopped": ({SCORE: -math.inf, STEP: 10}, ended(0.9), TrialState.FAIL, None, {}),
    "diverged": (ended(0.9), {REASON_KEY: "diverged at step 3", STEP: 3}, TrialState.FAIL, None, {}),
    "failed and stopped": ({SCORE: 0.2, STEP: 20}, None, TrialState.FAIL, None, {}),
    "no evaluation": (ended(0.9), {}, TrialState.FAIL, None, {}),
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


def test_reasons_of_failure_are_kept(tmp_path: Path) -> None:
    searcher = searcher_in(tmp_path, make_spec(tmp_path))
    results = [{REASON_KEY: "diverged at step 3: loss is nan"}, ended(math.nan), None, {}]
    for number, result in enumerate(results):
        searcher.suggest(str(number))
        searcher.on_trial_complete(str(number), result, error=result is None)
    reasons = [c.results[seed].reason for c in searcher.configurations[:2] for seed in (0, 1)]
    assert reasons == [
        "diverged at step 3: loss is nan",
        "score is nan",
        "died, and its retries are spent",
        "ended before its first evaluation",
    ]


def test_failures_do_not_end_the_sweep(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    searcher = searcher_in(tmp_path, spec)
    drain(searcher, result=lambda s: ended(math.nan) if s["configuration"] == 2 else ended(score_of(s)))
    states = [outcome(c, spec.seeds).state for c in searcher.configurations]
    assert states == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]


@pytest.mark.parametrize(("mode", "winner"), [("max", 1), ("min", 0)])
def test_best(mode: str, winner: int, tmp_path: Path) -> None:
    spec = make_spec(tmp_path, objective={"mode": mode}, search={"configurations": 0})
    searcher = searcher_in(tmp_path, spec, mirror=True)
    drain(searcher)
    found = best(searcher.configurations, spec.seeds, mode)
    assert found is not None and found.number == winner
    assert study_in(tmp_path).best_trial.number == winner
    assert best([], spec.seeds, mode) is None


def test_an_interrupted_or_halted_trial_keeps_its_place(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    searcher = searcher_in(tmp_path, spec)
    for trial_id in "abcde":
        searcher.suggest(trial_id)
    searcher.on_trial_complete("a", {SCORE: 0.5, STEP: 10, INTERRUPTED_KEY: True})
    searcher.halt()
    assert searcher.suggest("f") == searcher.FINISHED
    searcher.on_trial_complete("b", {SCORE: 0.5, STEP: 10})
    searcher.on_trial_complete("c", error=True)
    searcher.on_trial_complete("d", ended(0.5))
    names = [s["trial"] for s in drain(searcher_in(tmp_path, spec))]
    assert names[:4] == ["c000-s0", "c000-s1", "c001-s0", "c002-s0"]
    assert "c001-s1" not in names


def test_unknown_and_repeated_completions_are_ignored(tmp_path: Path) -> None:
    searcher = searcher_in(tmp_path, make_spec(tmp_path))
    searcher.suggest("a")
    searcher.on_trial_complete("a", ended(0.5))
    lines = (tmp_path / "events.jsonl").read_text()
    searcher.on_trial_complete("a", ended(0.9))
    searcher.on_trial_complete("never issued", ended(0.9))
    assert (tmp_path / "events.jsonl").read_text() == lines


def read_ledger(path: Path) -> list[dict[str, Any]]:
    return [record for record, _ in read_json_lines(path)]


def whole_sweep(tmp_path: Path) -> tuple[SweepSpec, bytes, list[dict[str, Any]]]:
    spec = make_spec(tmp_path)
    folder = tmp_path / "whole"
    folder.mkdir()
    suggestions = drain(searcher_in(folder, spec), parallel=1)
    return spec, (folder / "events.jsonl").read_bytes(), suggestions


def test_killed_at_any_byte_every_trial_ends_exactly_once(tmp_path: Path) -> None:
    spec, ledger, suggestions = whole_sweep(tmp_path)
    expected = {s["trial"]: s["parameters"] for s in suggestions}
    lines = [position + 1 for position, byte in enumerate(ledger) if byte == ord("\n")]
    # Every line end, the bytes around it, and random bytes in between.
    near = {p + d for p in [0, *lines] for d in (-1, 0, 1) if 0 <= p + d <= len(ledger)}
    cuts = sorted(near | set(random.Random(0).sample(range(len(ledger)), 40)))
    path = tmp_path / "events.jsonl"
    for cut in cuts:
        path.write_bytes(ledger[:cut])
        drain(searcher_in(tmp_path, spec), parallel=1)
        records = read_ledger(path)
        results = [TrialKey(r["configuration"], r["seed"]).name for r in records if r["event"] == "result"]
        assert sorted(results) == sorted(expected), f"cut at byte {cut}"
        # Trials ran one at a time here, so the new driver must propose exactly what the old one did.
        again = {TrialKey(c.number, s).name: c.parameters for c in replay(records) for s in spec.seeds}
        assert again == expected, f"cut at byte {cut}"


def test_killed_again_and_again(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    chance = random.Random(1)
    path = tmp_path / "events.jsonl"
    for _ in range(200):
        searcher = searcher_in(tmp_path, spec)
        running: dict[str, dict[str, Any]] = {}
        for step in range(chance.randint(1, 6)):
            suggestion = searcher.suggest(str(step))
            if suggestion != searcher.FINISHED:
                running[str(step)] = suggestion
            if running and chance.random() < 0.4:
                trial_id = chance.choice(sorted(running))
                searcher.on_trial_complete(trial_id, ended(score_of(running.pop(trial_id))))
        if searcher.suggest("last") == searcher.FINISHED and not running:
            break
        if chance.random() < 0.3:  # died while writing
            path.write_bytes(path.read_bytes() + b'{"event": "resu')
    else:
        raise AssertionError("the sweep did not come to its end")
    results = [(r["configuration"], r["seed"]) for r in read_ledger(path) if r["event"] == "result"]
    assert sorted(results) == [(c, s) for c in range(5) for s in (0, 1)]


def test_torn_line_is_reported_and_cut_by_the_owner_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec, ledger, _ = whole_sweep(tmp_path)
    path = tmp_path / "events.jsonl"
    path.write_bytes(ledger[:-10])
    whole = ledger[:-10].rfind(b"\n") + 1
    assert len(read_ledger(path)) == ledger.count(b"\n") - 1
    assert path.stat().st_size == len(ledger) - 10
    searcher_in(tmp_path, spec)
    assert path.stat().st_size == whole
    assert "never finished" in caplog.text


def test_damaged_line_is_named(tmp_path: Path) -> None:
    spec, ledger, _ = whole_sweep(tmp_path)
    lines = ledger.split(b"\n")
    lines[2] = b"{broken"
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(StorageError, match=r"events\.jsonl:3"):
        searcher_in(tmp_path, spec)


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


def test_baseline_outside_of_the_range_does_not_spoil_the_sampler(tmp_path: Path) -> None:
    for sampler in ("tpe", "gp", "nsga2"):
        folder = tmp_path / sampler
        folder.mkdir()
        spec = make_spec(
            folder,
            parameters={**NUMERIC, ALPHA: {"uniform": [0.1, 0.5]}},
            baselines=[{ALPHA: 0.0, "lopti": False}, {ALPHA: 0.2, "lopti": False}],
            search={"sampler": sampler, "configurations": 8, "startup": 2},
            seeds=[0],
        )
        points = [s["parameters"] for s in drain(searcher_in(folder, spec))]
        assert points[0][ALPHA] == 0.0
        assert all(0.1 <= point[ALPHA] <= 0.5 for point in points[1:])


def test_a_reader_that_locks_the_study_does_not_stop_the_sweep(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, search={"configurations": 0}, seeds=[0])
    searcher = searcher_in(tmp_path, spec, mirror=True)
    searcher.suggest("a")
    reader = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    reader.execute("BEGIN EXCLUSIVE")
    searcher.on_trial_complete("a", ended(0.5))
    reader.close()
    assert study_in(tmp_path).trials[0].value == 0.5


@pytest.mark.parametrize("lost", ["events.jsonl", "study.db"])
def test_lost_file_ends_the_sweep_and_is_not_made_anew(lost: str, tmp_path: Path) -> None:
    folder = tmp_path / "kk"
    folder.mkdir()
    searcher = searcher_in(folder, make_spec(tmp_path), mirror=True)
    searcher.suggest("a")
    (folder / lost).rename(tmp_path / "moved")
    with pytest.raises(StorageError, match=lost.replace(".", r"\.")):
        searcher.on_trial_complete("a", ended(0.5))
    # Tune swallows what `on_trial_complete` raises, so the searcher says it again.
    with pytest.raises(StorageError):
        searcher.on_trial_result("b", {})
    with pytest.raises(StorageError):
        searcher.suggest("c")
    assert not (folder / lost).exists()


def test_full_disk_names_the_space_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = searcher_in(tmp_path, make_spec(tmp_path))
    before = (tmp_path / "events.jsonl").read_bytes()
    real_write = os.write

    def half_write(descriptor: int, data: bytes) -> int:
        if len(data) <= 20:
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data[: max(1, len(data) // 2)])

    monkeypatch.setattr(os, "write", half_write)
    with pytest.raises(StorageError, match=r"No space left on device[\s\S]*MiB free"):
        searcher.suggest("a")
    monkeypatch.undo()
    assert (tmp_path / "events.jsonl").read_bytes() == before
