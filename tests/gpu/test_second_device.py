"""Training on a device that is not the CPU: nothing mixes devices, and microbatches do not wait for it."""

import pytest

from tests.invariants.ranks import run_ranks
from trainer.policy.tiny import TinyRecipe, ensure_tiny_policy

BOTH = {"algorithm.lopti_eta": 0.5, "algorithm.ar_alpha": 0.3}
RULES = {"grpo": {}, "reinforce_plus_plus": {"advantage": "reinforce_plus_plus"}}


def of_the_trainer(found) -> int:
    """Waits but those of sampling with transformers and of its models: one a forward, looking for a mask."""
    apart = ("trainer/rollouts/", "trainer/policy/logprobs.py")
    return sum(count for line, count in found["waits"].items() if not line.startswith(apart))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_rank(tmp_path):
    """A run with evaluation, checkpoint and resume; updates whose microbatches are many or one."""
    model = str(ensure_tiny_policy(tmp_path / "tiny", TinyRecipe(steps=1, puzzles=40)))
    updates = {f"{name} {tokens}": (rule, tokens) for name, rule in RULES.items() for tokens in (12, 1000)}
    job = {"model": model, "cases": {"lopti and ar": BOTH}, "updates": updates}
    [found] = run_ranks("tests.gpu.second_device", 1, job, tmp_path)
    assert {name: one["mismatches"] for name, one in found.items()} == {name: {} for name in found}
    for name in RULES:
        assert of_the_trainer(found[f"{name} 12"]) == of_the_trainer(found[f"{name} 1000"]), name
    assert of_the_trainer(found["lopti and ar"]) <= 16  # of them 8 in two passes of two optimizer steps
