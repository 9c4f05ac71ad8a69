import importlib.util

import pytest
import torch

from tests.conftest import random_model
from trainer.config.schema import ModelConfig, load_config
from trainer.errors import ConfigError, MissingError
from trainer.parallel.models import load_models
from trainer.parallel.ranks import Parallel
from trainer.policy.adapters import add_adapter
from trainer.policy.architectures import KNOWN
from trainer.policy.load import base_of, check_weights, load_policy
from trainer.policy.memory import footprint
from trainer.policy.quantization import plain
from trainer.policy.state import save_weights, trained_weights

NF4 = ["model.quantization=nf4", "model.lora.r=8"]


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (NF4[:1], "quantised weights cannot be trained: set lora.r above 0"),
        ([*NF4, "model.random_weights=true"], "random weights are not quantised"),
        ([*NF4, "parallel.strategy=deepspeed"], "DeepSpeed wants weights of one dtype"),
        (["model.quantization=nf3", "model.lora.r=8"], "did you mean nf4?"),
    ],
)
def test_what_cannot_be_in_4_bits(overrides, what):
    with pytest.raises(ConfigError) as refused:
        load_config("tiny_kk", overrides)
    assert what in str(refused.value)


def test_without_the_package_or_a_gpu_it_is_refused(tmp_path, monkeypatch):
    random_model().save_pretrained(tmp_path)
    config = load_config("tiny_kk", [*NF4, f"model.name_or_path={tmp_path}"]).model
    there = importlib.util.find_spec
    monkeypatch.setattr("trainer.policy.quantization.find_spec", lambda name: None)
    for refused_by in (lambda: load_policy(config, torch.device("cuda")), lambda: check_weights(config)):
        with pytest.raises(MissingError, match="need a GPU and bitsandbytes, which is not installed") as refused:
            refused_by()
        assert refused.value.hint == "pip install bitsandbytes, or model.quantization=none"
    monkeypatch.setattr("trainer.policy.quantization.find_spec", lambda name: there("torch"))
    with pytest.raises(MissingError, match="need a GPU, and this rank computes on the CPU"):
        load_policy(config, torch.device("cpu"))


def test_an_adapter_is_merged_into_weights_as_they_are_stored(tmp_path):
    random_model().save_pretrained(tmp_path / "base")
    model, folder = random_model(), tmp_path / "adapter"
    add_adapter(model, load_config("tiny_kk", NF4).model.lora, base=str(tmp_path / "base"))
    folder.mkdir()
    save_weights(folder, model, trained_weights(model))
    config = load_config("tiny_kk", [*NF4, f"model.name_or_path={folder}"])
    assert base_of(config.model).quantization == "none"
    assert load_policy(config.model, torch.device("cpu")).dtype == torch.float32  # as `trainer evaluate` loads it
    with pytest.raises(ConfigError, match="weights of 4 bits cannot take it up"):
        load_models(config, Parallel(torch.device("cpu")))


def test_the_held_memory_of_frozen_weights_in_4_bits():
    full, small = (footprint(load_config("kk_7b_lora", changes), 1) for changes in ([], NF4[:1]))
    shape = KNOWN["Qwen/Qwen2.5-7B-Instruct-1M"]
    layers = shape.parameters - 2 * 152_064 * 3584  # input and output embeddings stay in bfloat16
    assert full.held - small.held == pytest.approx(layers * (2 - 0.516), abs=1)
    assert small.checkpoint == full.checkpoint


def test_weights_that_are_not_quantised_are_themselves():
    weight = torch.nn.Parameter(torch.ones(2, 3))
    assert plain(weight).data_ptr() == weight.data_ptr() and not plain(weight).requires_grad
    assert ModelConfig().quantization == "none"
