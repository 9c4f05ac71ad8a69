"""Training on a device that is not the CPU: nothing mixes devices, and microbatches do not wait for
it.
"""

import pytest

from tests.conftest import random_model
from tests.invariants.ranks import run_ranks
from tests.invariants.rules import RULES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Waits for the device in a step of four optimizer steps, in two passes: of one rank, and of each of
# two, which also exchange groups.
ALONE = 7
TOGETHER = 16
RUNS = {
    1: {"lopti and ar": ({}, ALONE), "adapter": ({"model.lora.r": 4}, ALONE)},
    2: {
        "lopti and ar": ({}, TOGETHER),
        "dynamic sampling": ({"rollout.dynamic_sampling": True}, TOGETHER + 1),
    },
}


def run(cases, ranks, folder):
    """What each rank found, with the trainer's waits: not transformers', in sampling and once a
    forward.
    """
    everything = run_ranks("tests.gpu.second_device_job", ranks, {"cases": cases}, folder)
    for of_rank in everything:
        print({name: case["waits"] for name, case in of_rank.items()})
        assert {name: case["mismatches"] for name, case in of_rank.items()} == {
            name: {} for name in of_rank
        }
        for case in of_rank.values():
            apart = ("trainer/rollouts/", "trainer/policy/", "?")
            case["waits"] = sum(
                count for line, count in case["waits"].items() if not line.startswith(apart)
            )
    return everything


def test_every_rule_in_several_microbatches_and_in_one(tmp_path):
    random_model(layers=1).save_pretrained(tmp_path / "model")
    cases = {name: ("update", name, 400, str(tmp_path / "model")) for name in RULES}
    cases |= {"in one": ("update", "grpo", 10_000, str(tmp_path / "model"))}
    [of_rank] = run(cases, 1, tmp_path)
    # its mask leaves three of the four without a gradient
    updates = dict.fromkeys(cases, 4) | {"icepop": 1}
    assert {name: case["updates"] for name, case in of_rank.items()} == updates
    assert of_rank["grpo"]["waits"] == of_rank["in one"]["waits"]
    # of one that counts tokens of all ranks
    assert max(case["waits"] for case in of_rank.values()) <= 13


@pytest.mark.parametrize("ranks", RUNS)
def test_runs_with_evaluation_checkpoint_and_resumption(ranks, tiny_policy, tmp_path):
    more = {"parallel.strategy": "ddp"} if ranks > 1 else {}
    cases = {
        name: ("train", more | overrides, str(tiny_policy))
        for name, (overrides, _) in RUNS[ranks].items()
    }
    for of_rank in run(cases, ranks, tmp_path):
        assert [case["grown"] for case in of_rank.values()] == [{}] * len(cases)
        assert {case["updates"] for case in of_rank.values()} == {4}
        assert {name: case["waits"] for name, case in of_rank.items()} == {
            name: waits for name, (_, waits) in RUNS[ranks].items()
        }
