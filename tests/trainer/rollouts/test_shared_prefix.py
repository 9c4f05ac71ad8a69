import pytest

from tests.conftest import random_model
from trainer.rollouts.shared_prefix import is_supported


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
