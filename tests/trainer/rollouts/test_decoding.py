import pytest
import torch
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.conftest import random_model
from trainer.rollouts.decoding import (
    CachedBatch,
    SharedPrefixBatch,
    fastest_batch,
    next_logits,
    prefill_prompts,
)

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]]


@torch.no_grad()
def test_a_family_that_returns_all_logits_is_cut_to_the_last(monkeypatch):
    model = random_model()
    forward = type(model).forward

    def of_all_positions(self, input_ids, attention_mask, position_ids, past_key_values, use_cache):
        return forward(
            self,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )

    ids = torch.tensor([PROMPTS[0]])
    positions = torch.arange(3)[None]
    arguments = (ids, torch.ones(1, 3, dtype=torch.int64), positions)
    kept = next_logits(
        model, *arguments, prefill_prompts(model, [[1]], 0).cache.__class__(config=model.config)
    )
    monkeypatch.setattr(type(model), "forward", of_all_positions)
    cut = next_logits(
        model, *arguments, prefill_prompts(model, [[1]], 0).cache.__class__(config=model.config)
    )
    assert cut.shape == (1, model.config.vocab_size)
    torch.testing.assert_close(cut, kept)


def test_a_model_built_like_llama_shares_prefixes_and_keeps_its_angles():
    model = random_model()
    angles = model.model.rotary_emb.inv_freq.clone()
    assert fastest_batch(model, 0) is SharedPrefixBatch
    assert torch.equal(model.model.rotary_emb.inv_freq, angles)


def dynamic_angles():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    return LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=rope))


def window_in_one_layer():
    window = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, **window))


def scaled_by_position(beta=0.5):
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "llama_4_scaling_beta": beta,
    }
    return Ministral3ForCausalLM(Ministral3Config(**SHAPE, head_dim=8, rope_parameters=rope))


@pytest.mark.parametrize(
    "make",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
        lambda: scaled_by_position(beta=0.0),
    ],
    ids=["llama", "qwen2", "ministral3"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_whose_positions_are_only_angles_shares_prefixes(make, dtype):
    torch.manual_seed(0)
    model = make().to(dtype)
    assert fastest_batch(model, 0) is SharedPrefixBatch
    assert not model.model.rotary_emb._forward_hooks


@pytest.mark.parametrize(
    "make",
    [
        dynamic_angles,
        scaled_by_position,
        window_in_one_layer,
        lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=64)),
        lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)),  # normalizes queries and keys
        lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, residual_multiplier=0.9)),
        lambda: PhiForCausalLM(PhiConfig(**SHAPE)),  # other layers
    ],
    ids=["dynamic", "ministral3", "window", "mistral", "qwen3", "granite", "phi"],
)
def test_a_model_that_differs_runs_its_own_forward(make):
    torch.manual_seed(0)
    assert fastest_batch(make(), 0) is CachedBatch
