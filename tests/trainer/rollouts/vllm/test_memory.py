"""A rank that keeps its engine for the next trial keeps nothing else, although vLLM freezes what it finds."""

import pytest

from tests.invariants.test_memory import STRATEGIES, check_trials_end, run_trials
from trainer.policy.tiny import TinyRecipe, ensure_tiny_policy

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_of_a_trial_but_its_engine_is_left_in_its_ranks(strategy, tmp_path_factory, tmp_path):
    # Two heads of 32: vLLM's CPU kernels have none of 16.
    cache = tmp_path_factory.getbasetemp() / "policies"
    policy = ensure_tiny_policy(cache, TinyRecipe(heads=2, steps=1, puzzles=50))
    overrides = {"rollout.engine": "vllm", "rollout.vllm.kv_cache_mb": 64}
    check_trials_end(strategy, run_trials([strategy], policy, overrides, tmp_path), kept=["engine"])
