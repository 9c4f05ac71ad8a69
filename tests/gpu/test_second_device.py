"""Training on a device that is not the CPU: nothing mixes devices, and microbatches do not wait for it."""

import pytest

from tests.conftest import random_model
from tests.invariants.ranks import run_ranks
from tests.invariants.rules import RULES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Waits for the device in a step of four optimizer steps, in two passes: scoring and updating by a rule; the whole
# step of one rank, and of each of two.
OF_A_RULE = 5
# Rules that select tokens by a quantile or a count over all ranks read it on the host, once an update.
OF_SOME = {"clip_cov": 11, "kl_cov": 10, "lp_reg": 8, "stare": 13, "stapo": 7, "high entropy": 7}
ALONE, TOGETHER = 7, 15
RUNS = {
    "lopti and ar": ({}, ALONE, TOGETHER),
    "adapter": ({"model.lora.r": 4}, ALONE, TOGETHER),
    "dynamic sampling": ({"rollout.dynamic_sampling": True}, ALONE, TOGETHER + 1),
    "autocast": ({"model.dtype": "bfloat16"}, ALONE, TOGETHER),
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
    assert {name: one["waits"] for name, one in found.items()} == dict.fromkeys(cases, OF_A_RULE) | OF_SOME


@pytest.mark.parametrize("ranks", [1, 2])
def test_runs_with_evaluation_checkpoint_and_resumption(ranks, tiny_policy, tmp_path):
    more = {"parallel.strategy": "ddp"} if ranks > 1 else {}
    cases = {name: ("train", more | overrides, str(tiny_policy)) for name, (overrides, *_) in RUNS.items()}
    for found in run(cases, ranks, tmp_path):
        assert {one["updates"] for one in found.values()} == {4}
        assert {name: one["waits"] for name, one in found.items()} == {n: of[ranks] for n, of in RUNS.items()}


def test_an_update_of_3b_reads_nothing_on_the_host(tmp_path):
    """Weights in bfloat16, and in float32 under autocast, of the real shape and without contents."""
    [found] = run({stored: ("large", stored) for stored in ("bfloat16", "float32")}, 1, tmp_path)
    for stored, one in found.items():
        assert (one["waits"], one["updates"], one["gradients"]) == (0, 2, [f"torch.{stored}"])
        assert one["products"]["torch.bfloat16"] > 100 * one["products"].get("torch.float32", 0)
