from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from loptune.errors import MissingError
from tests.refusals import refused
from trainer.config.model import ModelConfig
from trainer.policy.gguf import ensure_converted
from trainer.policy.load import load_policy, load_tokenizer, model_source

WORDS = ["<unk>", "<s>", "</s>", "▁a", "▁b", "a", "b", "▁"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOPTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def small_file(path):
    """A random one-layer Llama in a GGUF file; returns its tensors by their GGUF names."""
    rng = np.random.default_rng(0)
    width = 32
    hidden = 64
    vocabulary = len(WORDS)
    shapes = {
        "token_embd.weight": (vocabulary, width),
        "output.weight": (vocabulary, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.attn_q.weight": (width, width),
        "blk.0.attn_k.weight": (width, width),
        "blk.0.attn_v.weight": (width, width),
        "blk.0.attn_output.weight": (width, width),
        "blk.0.ffn_gate.weight": (hidden, width),
        "blk.0.ffn_up.weight": (hidden, width),
        "blk.0.ffn_down.weight": (width, hidden),
    }
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        **{
            "block_count": 1,
            "context_length": 64,
            "embedding_length": width,
            "feed_forward_length": hidden,
        },
        **{
            "head_count": 2,
            "head_count_kv": 2,
            "rope_dimension_count": 16,
            "layer_norm_rms_eps": 1e-5,
        },
        **{"vocab_size": vocabulary, "tokenizer_model": "llama", "token_list": WORDS},
        **{"token_scores": [0.0] * vocabulary, "token_types": [2, 3, 3, 1, 1, 1, 1, 1]},
        **{"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0},
    }.items():
        getattr(writer, f"add_{key}")(value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_file_becomes_an_ordinary_folder_once(tmp_path, cache):
    file = tmp_path / "small.gguf"
    tensors = small_file(file)
    config = ModelConfig(name_or_path=str(file))
    folder = Path(model_source(config).name)
    assert folder.parent == cache
    assert (folder / "model.safetensors").is_file()
    assert ensure_converted(file) == folder

    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(theirs.lm_head.weight, torch.tensor(tensors["output.weight"]))
    assert torch.equal(
        theirs.model.layers[0].mlp.up_proj.weight, torch.tensor(tensors["blk.0.ffn_up.weight"])
    )
    ours = load_policy(config, torch.device("cpu"))
    ids = torch.tensor([[1, 3, 4, 5]])
    assert torch.allclose(ours(ids).logits, theirs(ids).logits, atol=1e-5)
    assert load_tokenizer(config).eos_token_id == 2


def test_another_content_gets_another_folder(tmp_path, cache):
    file = tmp_path / "small.gguf"
    small_file(file)
    first = ensure_converted(file)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert ensure_converted(file) != first


@pytest.mark.parametrize("part", [0.01, 0.1, 0.3, 0.6, 0.99])
def test_a_file_that_is_cut_short_is_refused(tmp_path, cache, part):
    file = tmp_path / "small.gguf"
    small_file(file)
    data = file.read_bytes()
    file.write_bytes(data[: int(part * len(data))])
    with refused("gguf-unreadable", MissingError, names=("small.gguf",)) as caught:
        model_source(ModelConfig(name_or_path=str(file)))
    assert "truncated" in caught.value.hint
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_what_is_no_model_is_refused_and_leaves_nothing(tmp_path, cache):
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 100)
    with refused("gguf-unreadable", MissingError, names=("broken.gguf",)):
        load_policy(ModelConfig(name_or_path=str(file)), torch.device("cpu"))
    assert [path for path in cache.iterdir() if path.is_dir()] == []
    with refused("no-such-file", MissingError, names=("absent.gguf",)):
        model_source(ModelConfig(name_or_path="./absent.gguf"))
