"""The searcher: order, what keeps its place, and a driver killed at any byte."""

import json
import math
import os
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sweep.search.history import TrialKey, outcome, replay
from sweep.search.searcher import ConfigurationSearcher
from sweep.space.spec import INTERRUPTED_KEY, REASON_KEY, SCORE, STEP, SweepSpec
from tests.sweep.search.instant_sweeps import ALPHA, ETA, GRID, drain, ended, score_of, searcher_in
from tests.sweep.spaces import make_spec
from trainer.errors import StorageError
from trainer.files import read_json_lines


def test_baselines_come_first_and_every_seed_once(tmp_path: Path) -> None:
    searcher = searcher_in(tmp_path, make_spec(tmp_path))
    suggestions = drain(searcher)
    assert [s["trial"] for s in suggestions] == [f"c{c:03d}-s{seed}" for c in range(5) for seed in (0, 1)]
    assert suggestions[0]["parameters"] == {"algorithm.advantage": "grpo", ALPHA: 0.0, "lopti": False}
    assert suggestions[3]["overrides"] == {"algorithm.advantage": "grpo", ALPHA: 0.3, ETA: 0.5, "seed": 1}
    for first, second in zip(suggestions[::2], suggestions[1::2], strict=True):
        assert first["parameters"] == second["parameters"]
    assert [c.origin for c in searcher.configurations] == ["baseline"] * 2 + ["search"] * 3


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


def test_a_lost_ledger_ends_the_sweep_and_is_not_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "kk"
    folder.mkdir()
    searcher = searcher_in(folder, make_spec(tmp_path), mirror=True)
    searcher.suggest("a")
    (folder / "events.jsonl").rename(tmp_path / "moved")
    with pytest.raises(StorageError, match=r"events\.jsonl"):
        searcher.on_trial_complete("a", ended(0.5))
    # Tune swallows what `on_trial_complete` raises, so the searcher says it again.
    with pytest.raises(StorageError):
        searcher.on_trial_result("b", {})
    with pytest.raises(StorageError):
        searcher.suggest("c")
    assert not (folder / "events.jsonl").exists()


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


def test_what_is_asked_before_a_trial_may_end_the_search_and_the_trial_keeps_its_place(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    asked = []

    def before_trial(trial: str, running: Sequence[str]) -> None:
        asked.append((trial, list(running)))
        if trial == "c001-s0":
            searcher.halt()

    searcher = ConfigurationSearcher(spec, tmp_path / "events.jsonl", before_trial=before_trial)
    trials = [searcher.suggest(str(number)) for number in range(3)]
    assert [suggestion["trial"] for suggestion in trials[:2]] == ["c000-s0", "c000-s1"]
    assert trials[2] == searcher.FINISHED
    assert asked == [("c000-s0", []), ("c000-s1", ["c000-s0"]), ("c001-s0", ["c000-s0", "c000-s1"])]
    events = [record["event"] for record, _ in read_json_lines(tmp_path / "events.jsonl")]
    assert events == ["configuration", "trial", "trial", "configuration"]
    pickle.dumps(searcher)  # as Tune does
    fresh = ConfigurationSearcher(spec, tmp_path / "events.jsonl")
    assert [key.name for key in fresh.open_pairs][:3] == ["c000-s0", "c000-s1", "c001-s0"]
