import pytest
import torch

from tests.conftest import random_model
from trainer.rollouts.decoding import is_supported, next_logits, prefill_prompts

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


def test_layers_that_are_not_plain_are_left_to_the_model():
    model = random_model()
    assert is_supported(model)
    projection = model.model.layers[0].mlp.up_proj

    class Adapted(type(projection)):
        """As an adapter replaces a layer: its weight alone does not say what it computes."""

    projection.__class__ = Adapted
    assert not is_supported(model)


@pytest.mark.parametrize("change", ["window", "rope"])
def test_other_attention_is_left_to_the_model(change):
    model = random_model()
    if change == "window":
        model.config.layer_types = ["full_attention", "sliding_attention"]
    else:
        model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "dynamic"}
    assert not is_supported(model)
