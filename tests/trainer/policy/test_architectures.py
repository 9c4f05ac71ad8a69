import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from trainer.policy.architectures import KNOWN, model_size, parameter_count


def test_a_model_that_is_not_here_is_not_guessed():
    assert model_size("Qwen/Qwen2.5-14B") is None
    assert model_size("no/such/folder") is None
    assert parameter_count("Qwen/Qwen2.5-14B") == 14e9


def test_the_embedded_policy_has_the_size_that_is_written_down(tiny_policy):
    weights = load_file(tiny_policy / "model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == KNOWN["tiny"].parameters
    in_folder = model_size(str(tiny_policy))
    assert in_folder.parameters == KNOWN["tiny"].parameters
    assert {key: in_folder.settings[key] for key in KNOWN["tiny"].settings()} == KNOWN["tiny"].settings()


@pytest.mark.parametrize("name", ["smollm2-135m", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B"])
def test_written_sizes_are_those_of_the_models_that_transformers_builds(name):
    settings = KNOWN[name].settings()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    assert model.num_parameters() == KNOWN[name].parameters
