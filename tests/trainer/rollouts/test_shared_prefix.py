import pytest

from tests.conftest import random_model
from tests.trainer.rollouts.batches_in_steps import largest_error
from trainer.rollouts import shared_prefix
from trainer.rollouts.shared_prefix import SharedPrefixBatch, is_supported


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("growth", [1, 8, 100])
def test_rows_that_grow_and_leave_have_the_logits_of_whole_sequences(family, growth, monkeypatch):
    monkeypatch.setattr(shared_prefix, "MIN_GROWTH", growth)
    assert largest_error(random_model(family), SharedPrefixBatch) < 1e-4


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
