"""Rules that read entropies, keep a state, or read group statistics: on two ranks, and resumed."""

import json
import shutil

import pytest

from tests.invariants.ranks import run_ranks

pytestmark = pytest.mark.slow

JOB = "tests.invariants.train_job"
RULES = {
    "entropy": {"algorithm.loss": "entropy_ratio:EntropyRatio"},
    "state": {"algorithm.loss": "clip_higher_schedule:ClipHigherSchedule"},
    "group": {"algorithm.loss": "hard_prompts:HardPrompts"},
    "stare": {"algorithm.loss": "moving_stare:MovingStare"},
    "bonus": {
        "algorithm.loss": {"name": "adaptive_entropy:AdaptiveEntropy", "target": 9.0}  # always on
    },
}
LAST = "checkpoints/step-4/manifest.json"


@pytest.fixture(scope="module")
def runs(tiny_policy, tmp_path_factory):
    """The folder of runs of every rule on two ranks: one to its end, and one that is stopped after
    step 2 and resumed.
    """
    folder = tmp_path_factory.mktemp("resumed")
    cases = {}
    for name, rule in RULES.items():
        overrides = {"parallel.strategy": "ddp", **rule}
        cases[f"{name}-whole"] = {"overrides": overrides}
        stop = {"1": {"stop_at": 2}}
        cases[f"{name}-stopped"] = {"overrides": overrides, "sabotage": stop}
    job = {"model": str(tiny_policy), "runs": str(folder), "cases": cases}
    first = run_ranks(JOB, 2, job, folder / "first")
    job["cases"] = {name: {"overrides": case["overrides"]} for name, case in cases.items()}
    for name in RULES:
        shutil.copytree(folder / f"{name}-stopped", folder / "kept" / name)
        del job["cases"][f"{name}-whole"]
    second = run_ranks(JOB, 2, job, folder / "second")
    return folder, first, second


@pytest.mark.parametrize("name", RULES)
def test_a_resumed_run_equals_one_never_stopped(runs, name):
    folder, first, second = runs
    assert [rank[f"{name}-stopped"]["step"] for rank in first] == [2, 2]
    assert [rank[f"{name}-stopped"]["resumed_at"] for rank in second] == [2, 2]
    whole = json.loads((folder / f"{name}-whole" / LAST).read_text())
    resumed = json.loads((folder / f"{name}-stopped" / LAST).read_text())
    assert whole == resumed  # hashes of all files
    assert {"model.safetensors", "training_state.json"} <= whole.keys()


@pytest.mark.parametrize(("name", "number"), [("stare", "amplify"), ("bonus", "c")])
def test_the_states_of_all_ranks_are_equal_and_kept(runs, name, number):
    _, first, second = runs
    by_rank = [rank[f"{name}-whole"]["metrics"] for rank in first]
    states = [
        [metrics[str(step)][f"rule/loss/{number}"] for step in (1, 2, 3, 4)] for metrics in by_rank
    ]
    assert states[0] == states[1]
    assert len(set(states[0])) > 1
    resumed = [second[0][f"{name}-stopped"]["metrics"][str(step)] for step in (3, 4)]
    assert [metrics[f"rule/loss/{number}"] for metrics in resumed] == states[0][2:]


def test_the_state_moves_and_is_equal_on_all_ranks(runs):
    folder, first, _ = runs
    by_rank = [rank["state-whole"]["metrics"] for rank in first]
    states = [
        [metrics[str(step)]["rule/loss/high"] for step in (1, 2, 3, 4)] for metrics in by_rank
    ]
    assert states[0] == states[1]
    entropies = [by_rank[0][str(step)]["policy/entropy"] for step in (1, 2, 3, 4)]
    expected = 0.24
    for state, entropy in zip(states[0], entropies, strict=True):
        expected = max(0.2, expected + 0.1 * (0.3 - entropy))
        assert state == expected
    saved = json.loads((folder / "state-whole/checkpoints/step-4/training_state.json").read_text())
    assert saved["rule_states"] == {"advantage": {}, "loss": {"high": states[0][-1]}}
