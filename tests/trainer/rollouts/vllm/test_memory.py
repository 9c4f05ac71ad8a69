"""A rank that keeps its engine for the next trial keeps nothing else, although vLLM freezes what it
finds.
"""

import pytest

from tests.invariants.test_memory import STRATEGIES, check_trials_end, run_trials
from trainer.policy.architectures import TINY_FOLDER

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_of_a_trial_but_its_engine_is_left_in_its_ranks(strategy, tmp_path):
    overrides = {"rollout.engine": "vllm", "rollout.vllm.kv_cache_mb": 64}
    check_trials_end(
        strategy, run_trials([strategy], TINY_FOLDER, overrides, tmp_path), kept=["engine"]
    )
