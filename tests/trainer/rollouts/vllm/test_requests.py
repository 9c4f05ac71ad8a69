"""What is decided about requests before and after vLLM; needs no vLLM."""

from types import SimpleNamespace

import pytest

from tests.conftest import random_model
from trainer.errors import ConfigError, EngineError
from trainer.rollouts.engine import Sample
from trainer.rollouts.vllm import engine as vllm
from trainer.rollouts.vllm import setup


def test_asking_for_vllm_without_having_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(vllm, "vllm_installed", lambda: False)
    with pytest.raises(ConfigError, match="not installed") as caught:
        vllm.VllmEngine(random_model(), setup.EngineSetup("unused", 64))
    assert "make install-gpu" in caught.value.hint


def finished(reason: str | None) -> SimpleNamespace:
    # Two log-probabilities per position: the sampled token's comes first.
    logprobs = SimpleNamespace(logprobs=[-0.5, -0.1, -2.0, -0.3], start_indices=[0, 2])
    completion = SimpleNamespace(token_ids=[7, 9], finish_reason=reason, logprobs=logprobs)
    return SimpleNamespace(prompt_token_ids=[1, 2, 3], outputs=[completion])


def test_a_sample_has_the_log_probabilities_of_its_own_tokens():
    assert vllm._sample(0, finished("stop")) == Sample((7, 9), (-0.5, -2.0), "stop")


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_a_request_that_did_not_finish_is_named(reason):
    with pytest.raises(EngineError, match=r"request 4 \(prompt of 3 tokens, 2 sampled\)"):
        vllm._sample(4, finished(reason))
