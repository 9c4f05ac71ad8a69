"""What is decided about requests before and after vLLM; needs no vLLM."""

from types import SimpleNamespace

import pytest

from tests.conftest import random_model
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.errors import ConfigError, EngineError
from trainer.rollouts.engine import Sample
from trainer.rollouts.vllm import engine as vllm
from trainer.rollouts.vllm import failures, setup


def config(**changes) -> TrainConfig:
    keys = {"prompt": "data.max_prompt_tokens", "new": "rollout.max_new_tokens"}
    keys |= {"evaluation": "evaluation.max_new_tokens", "context": "rollout.vllm.max_model_len"}
    return apply_overrides(TrainConfig(), {keys[name]: value for name, value in changes.items()})


def test_the_context_holds_the_longest_prompt_with_the_longest_completion():
    model = random_model()  # 512 positions
    assert setup.context_length(config(prompt=100, new=200), model) == 300
    assert setup.context_length(config(prompt=100, new=200, evaluation=300), model) == 400
    assert setup.context_length(config(prompt=100, new=200, context=450), model) == 450


@pytest.mark.parametrize(
    ("lengths", "key"),
    [
        ({"prompt": 300, "new": 213}, "max_position_embeddings of the model is 512"),
        ({"prompt": 100, "new": 100, "evaluation": 500}, "max_position_embeddings of the model is 512"),
        ({"prompt": 100, "new": 200, "context": 299}, "rollout.vllm.max_model_len is 299"),
    ],
)
def test_requests_longer_than_the_context_are_refused_before_training(lengths, key):
    with pytest.raises(ConfigError, match=key):
        setup.context_length(config(**lengths), random_model())


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


@pytest.mark.parametrize(
    ("message", "knob"),
    [
        ("No available memory for the cache blocks.\nTry more", "gpu_memory_utilization"),
        ("CUDA out of memory. Tried to allocate 2 GiB", "gpu_memory_utilization"),
        ("Model architectures ['Odd'] are not supported", "rollout.engine=transformers"),
    ],
)
def test_a_failed_start_names_the_knobs(message, knob):
    error = failures.start_error(ValueError(message))
    assert knob in error.hint and message.splitlines()[0] in error.what
