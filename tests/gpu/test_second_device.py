"""Training on a device that is not the CPU: nothing mixes devices, and microbatches do not wait for it."""

import pytest

from tests.conftest import random_model
from tests.invariants.ranks import run_ranks
from tests.invariants.rules import RULES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Waits for the device in a step of four optimizer steps, in two passes: of one rank, and of each of two.
ALONE = 7
TOGETHER = 15
RUNS = {
    "lopti and ar": ({}, ALONE, TOGETHER),
    "adapter": ({"model.lora.r": 4}, ALONE, TOGETHER),
    "dynamic sampling": ({"rollout.dynamic_sampling": True}, ALONE, TOGETHER + 1),
}


def run(cases, ranks, folder):
    """What each rank found, with the trainer's waits: not transformers', in sampling and once a forward."""
    everything = run_ranks("tests.gpu.second_device_job", ranks, {"cases": cases}, folder)
    for found in everything:
        print({name: one["waits"] for name, one in found.items()})
        assert {name: one["mismatches"] for name, one in found.items()} == {name: {} for name in found}
        for one in found.values():
            apart = ("trainer/rollouts/", "trainer/policy/", "?")
            one["waits"] = sum(count for line, count in one["waits"].items() if not line.startswith(apart))
    return everything


def test_every_rule_in_several_microbatches_and_in_one(tmp_path):
    random_model().save_pretrained(tmp_path / "model")
    cases = {name: ("update", name, 400, str(tmp_path / "model")) for name in RULES}
    cases |= {"in one": ("update", "grpo", 10_000, str(tmp_path / "model"))}
    [found] = run(cases, 1, tmp_path)
    updates = dict.fromkeys(cases, 4) | {"icepop": 1}  # its mask leaves three of the four without a gradient
    assert {name: one["updates"] for name, one in found.items()} == updates
    assert found["grpo"]["waits"] == found["in one"]["waits"]
    assert max(one["waits"] for one in found.values()) <= 13  # of one that counts tokens of all ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_runs_with_evaluation_checkpoint_and_resumption(ranks, tiny_policy, tmp_path):
    more = {"parallel.strategy": "ddp"} if ranks > 1 else {}
    cases = {name: ("train", more | overrides, str(tiny_policy)) for name, (overrides, *_) in RUNS.items()}
    for found in run(cases, ranks, tmp_path):
        assert {one["updates"] for one in found.values()} == {4}
        assert {name: one["waits"] for name, one in found.items()} == {n: of[ranks] for n, of in RUNS.items()}
