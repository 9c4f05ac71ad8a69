import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from trainer.policy.architectures import KNOWN, TINY, TINY_FOLDER, model_size


def test_a_model_that_is_not_here_is_not_guessed():
    assert model_size("Qwen/Qwen2.5-14B") is None
    assert model_size("no/such/folder") is None


def test_the_tiny_model_is_measured_in_its_folder():
    size = model_size(TINY)
    weights = load_file(TINY_FOLDER / "model.safetensors")
    assert size.parameters == sum(tensor.numel() for tensor in weights.values()) == 105_920
    assert size.settings["hidden_size"] == 64


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\nsize 12\n"),
        ("model.safetensors", b""),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0[]"),
        ("config.json", b"{"),
        ("config.json", b"[1]"),
        ("config.json", b"\xff"),
    ],
)
def test_a_model_whose_files_are_damaged_has_no_size(tmp_path, name, content):
    for file in ("model.safetensors", "config.json"):
        shutil.copyfile(TINY_FOLDER / file, tmp_path / file)
    assert model_size(str(tmp_path)).parameters == 105_920
    (tmp_path / name).write_bytes(content)
    assert model_size(str(tmp_path)) is None


@pytest.mark.parametrize(
    "name", ["smollm2-135m", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B"]
)
def test_written_sizes_are_those_of_the_models_that_transformers_builds(name):
    settings = KNOWN[name].settings
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    assert model.num_parameters() == KNOWN[name].parameters
