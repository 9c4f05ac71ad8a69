"""What is decided about requests before and after vLLM; needs no vLLM."""

from types import SimpleNamespace

import pytest

from loptune.errors import EngineError
from tests.refusals import refused
from trainer.rollouts.vllm import engine as vllm
from trainer.types import Completion


def finished(reason):
    # Two log-probabilities per position: the sampled token's comes first.
    logprobs = SimpleNamespace(logprobs=[-0.5, -0.1, -2.0, -0.3], start_indices=[0, 2])
    completion = SimpleNamespace(token_ids=[7, 9], finish_reason=reason, logprobs=logprobs)
    return SimpleNamespace(prompt_token_ids=[1, 2, 3], outputs=[completion])


def test_a_sample_has_the_log_probabilities_of_its_own_tokens():
    assert vllm.to_completion(0, finished("stop")) == Completion((7, 9), (-0.5, -2.0), "stop")


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_a_request_that_did_not_finish_is_named(reason):
    with refused("request-unfinished", EngineError, names=("request 4", "3 tokens", "2 sampled")):
        vllm.to_completion(4, finished(reason))
