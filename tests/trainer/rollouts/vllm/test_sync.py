"""The comparison of engine and policy after a synchronization; needs no vLLM."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from loptune.errors import EngineError
from tests.conftest import random_model
from tests.refusals import refused
from trainer.rollouts.vllm import sync
from trainer.rollouts.vllm.sync import (
    MAX_CHECK_TOKENS,
    as_published,
    check_synced_weights,
    named_weights,
)

PROMPT = [5, 9, 13, 2, 40, 7]


def engine_off_by(nats):
    """The policy's own log-probabilities, wrong by so much, and the tokens it was asked about."""
    model = random_model()
    asked = []

    @torch.no_grad()
    def logprobs(token_ids):
        asked.append(token_ids)
        ids = torch.tensor([token_ids])
        exact = (
            model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        )
        return exact + nats * (-1.0) ** torch.arange(len(exact))

    return logprobs, model, asked


def test_a_prompt_of_the_run_is_compared():
    logprobs, model, asked = engine_off_by(0.005)
    assert check_synced_weights(logprobs, model, "float32", PROMPT) == pytest.approx(
        0.005, abs=1e-5
    )
    assert asked == [PROMPT]


def test_of_a_long_prompt_the_end():
    logprobs, _, asked = engine_off_by(0.0)
    prompt = [i % 61 for i in range(MAX_CHECK_TOKENS + 3)]
    check_synced_weights(logprobs, random_model(max_position_embeddings=1024), "float32", prompt)
    assert asked == [prompt[3:]]


def test_without_a_prompt_any_tokens_serve():
    logprobs, model, asked = engine_off_by(0.0)
    check_synced_weights(logprobs, model, "float32")
    assert len(set(asked[0])) > 20


def test_rounding_of_bfloat16_does_not_stop_a_run_and_other_weights_do():
    logprobs, model, _ = engine_off_by(0.2)
    assert check_synced_weights(logprobs, model, "bfloat16", PROMPT) == pytest.approx(0.2, abs=0.05)
    with refused("weights-differ", EngineError) as caught:
        check_synced_weights(logprobs, model, "float32", PROMPT)
    assert "5 tokens" in caught.value.what and " 0.2" in caught.value.what
    logprobs, model, _ = engine_off_by(2.0)
    with refused("weights-differ", EngineError) as caught:
        check_synced_weights(logprobs, model, "bfloat16", PROMPT)
    assert "bfloat16: 0.5" in caught.value.what


def test_weights_are_named_as_in_published_files(tmp_path):
    experts = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    shape = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=20, **shape, **heads, **experts))
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    synced = dict(named_weights(model))
    assert "model.layers.1.mlp.experts.2.up_proj.weight" in synced
    assert synced.keys() == saved.keys()
    for name, weight in synced.items():
        assert torch.equal(weight, saved[name]), name
    # names and shapes are also known without the values
    fused = "model.layers.0.mlp.experts.gate_up_proj"
    described = dict(as_published(model, fused, torch.empty(3, 16, 16, device="meta")))
    assert {name: synced[name].shape for name in described} == {
        name: weight.shape for name, weight in described.items()
    }


def test_a_model_that_is_published_as_it_is_is_asked_about_once(monkeypatch):
    model = random_model()
    asked = []
    revert = sync.revert_weight_conversion
    monkeypatch.setattr(
        sync,
        "revert_weight_conversion",
        lambda model, tensors: asked.append(len(tensors)) or revert(model, tensors),
    )
    for _ in range(2):
        weights = dict(named_weights(model))
    assert asked == [len(weights)] == [len(dict(model.named_parameters()))]
