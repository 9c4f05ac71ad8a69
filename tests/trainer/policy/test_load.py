import json

import pytest
import torch

from loptune.errors import ConfigError, MissingError, StorageError
from tests.conftest import random_model
from tests.refusals import refused
from tests.trainer.algorithm.batches import make_batch
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.config.model import ModelConfig
from trainer.config.schema import load_config
from trainer.planning.memory import footprint
from trainer.policy.architectures import MAX_CONFIG_BYTES, model_size
from trainer.policy.load import check_weights, load_policy, load_tokenizer
from trainer.policy.logprobs import LogprobModel
from trainer.policy.vocabulary import embedding_rows


@pytest.mark.parametrize(("recompute", "calls"), [(False, 1), (True, 2)])
def test_gradient_checkpointing_recomputes_layers_in_backward(random_policy, recompute, calls):
    config = ModelConfig(name_or_path=str(random_policy), gradient_checkpointing=recompute)
    policy = load_policy(config, torch.device("cpu"))
    seen = []
    policy.model.layers[0].mlp.register_forward_pre_hook(lambda *_: seen.append(1))
    batch = make_batch()
    scores = LogprobModel(policy, 1.0, 16)(
        batch.input_ids, batch.prompt_lengths, batch.completion_mask
    )
    scores.logprobs.sum().backward()
    assert len(seen) == calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_checkpointing_leaves_the_gradients_as_they_are(random_policy, dtype):
    gradients = []
    for recompute in (False, True):
        config = ModelConfig(name_or_path=str(random_policy), gradient_checkpointing=recompute)
        policy = load_policy(config, torch.device("cpu"), dtype)
        batch = make_batch()
        scores = LogprobModel(policy, 1.0, 16)(
            batch.input_ids, batch.prompt_lengths, batch.completion_mask
        )
        (
            scores.logprobs
            * torch.linspace(-1, 1, scores.logprobs.numel()).view_as(scores.logprobs)
        ).sum().backward()
        gradients.append({name: p.grad for name, p in policy.named_parameters()})
    kept, computed_again = gradients
    assert all(bool(gradient.any()) for gradient in kept.values())
    assert all(torch.equal(kept[name], computed_again[name]) for name in kept)


@pytest.fixture
def folder(tmp_path):
    tokenizer = byte_tokenizer()
    random_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def edit_json(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("size", [4, 1000])
def test_weights_that_are_cut_short_are_named(folder, size):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    config = ModelConfig(name_or_path=str(folder))
    with refused("weights-damaged", MissingError) as caught:
        check_weights(config)
    assert caught.value.where == str(weights)
    with refused("model-unreadable", MissingError, names=("deserializing header",)):
        load_policy(config, torch.device("cpu"))


def test_shards_that_are_missing_are_named(folder):
    config = ModelConfig(name_or_path=str(folder))
    load_policy(config, torch.device("cpu")).save_pretrained(folder, max_shard_size="5KB")
    (folder / "model.safetensors").unlink()
    check_weights(config)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with refused("no-weights", MissingError, names=(shard.name,)):
        check_weights(config)
    (folder / "model.safetensors.index.json").unlink()
    with refused("no-index-of-weights", MissingError, names=("model.safetensors.index.json",)):
        check_weights(config)


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"weight_map": [1]}', "[" * 100_000, "\xff"])
def test_a_damaged_index_of_weights_is_named(folder, text):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(text, "latin-1")
    with refused("weights-damaged", MissingError) as caught:
        check_weights(ModelConfig(name_or_path=str(folder)))
    assert caught.value.where == str(index)


@pytest.mark.parametrize(
    ("name", "read"), [("model.safetensors", check_weights), ("tokenizer.json", load_tokenizer)]
)
def test_a_pointer_of_git_lfs_is_named(folder, name, read):
    file = folder / name
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    with refused("lfs-pointer", StorageError, names=("git lfs pull", str(file))):
        read(ModelConfig(name_or_path=str(folder)))


def test_settings_that_make_the_model_fail_are_refused(folder):
    edit_json(folder / "config.json", num_attention_heads=0)
    config = load_config("tiny_kk", [f"model.name_or_path={folder}"])
    assert footprint(config, 1) is None
    with refused("model-unreadable", MissingError, names=("ZeroDivisionError",)):
        load_policy(config.model, torch.device("cpu"))


def test_a_model_with_code_of_its_own_names_the_key(folder):
    code = "configuration_mine.MineConfig", "modeling_mine.MineForCausalLM"
    auto_map = dict(zip(("AutoConfig", "AutoModelForCausalLM"), code, strict=True))
    edit_json(folder / "config.json", model_type="mine", auto_map=auto_map)
    config = ModelConfig(name_or_path=str(folder))
    with refused("own-code") as caught:
        embedding_rows(config)
    assert caught.value.key == "model.trust_remote_code"
    with refused("own-code"):
        load_policy(config, torch.device("cpu"))


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja"])
def test_settings_of_many_megabytes_are_not_read(folder, name):
    with (folder / name).open("w") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    with refused("config-too-large", MissingError, names=(name, "8 MiB")):
        load_tokenizer(ModelConfig(name_or_path=str(folder)))
    assert name != "config.json" or model_size(str(folder)) is None


def test_adapters_that_name_each_other_are_refused(tmp_path):
    for name, base in (("a", "b"), ("b", "a"), ("c", "c")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").touch()
        settings = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / base)}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(settings))
    for name in "abc":
        with refused("circular-adapters", MissingError) as caught:
            check_weights(ModelConfig(name_or_path=str(tmp_path / name)))
        assert caught.value.where == str(tmp_path / name / "adapter_config.json")


def test_a_folder_without_tokenizer_is_refused(folder):
    assert load_tokenizer(ModelConfig(name_or_path=str(folder))).eos_token == "</s>"
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with refused("no-tokenizer", MissingError):
        load_tokenizer(ModelConfig(name_or_path=str(folder)))


@pytest.mark.parametrize(
    ("kernel", "code", "hint"),
    [
        ("sdpb", "unknown-kernel", "sdpa"),
        ("flash_attention_2", "kernel-not-installed", "model.attn_implementation=sdpa"),
    ],
)
def test_an_attention_kernel_that_is_not_there_is_named(folder, kernel, code, hint):
    with refused(code, ConfigError, key="model.attn_implementation") as caught:
        load_policy(
            ModelConfig(name_or_path=str(folder), attn_implementation=kernel), torch.device("cpu")
        )
    assert kernel in caught.value.what and hint in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"num_hidden_layers": 4}, "model-unreadable", ["`num_hidden_layers` (4)"]),
        ({"num_hidden_layers": 4, "layer_types": None}, "weights-missing", ["model.layers.2"]),
        ({"vocab_size": 300}, "weights-of-other-shapes", ["model.embed_tokens.weight"]),
        ({"hidden_size": 64}, "weights-of-other-shapes", []),
        ({"hidden_act": "gleu"}, "model-unreadable", ["gleu"]),
        ({"model_type": "bert", "is_decoder": True}, "weights-missing", ["bert."]),
    ],
)
def test_weights_that_do_not_fill_the_model_are_refused(folder, changes, code, names):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with refused(code, MissingError, names=names):
        load_policy(ModelConfig(name_or_path=str(folder)), torch.device("cpu"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(folder, value):
    model = random_model(vocab_size=len(byte_tokenizer()))
    with torch.no_grad():
        model.model.norm.weight[3] = value
    model.save_pretrained(folder)
    with refused("weights-not-finite", MissingError, names=("model.norm.weight [",)) as caught:
        load_policy(ModelConfig(name_or_path=str(folder)), torch.device("cpu"))
    assert "config.json" not in caught.value.hint
