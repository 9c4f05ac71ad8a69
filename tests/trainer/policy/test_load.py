import pytest
import torch

from tests.conftest import random_model
from tests.trainer.algorithm.batches import make_batch
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.config.schema import ModelConfig
from trainer.errors import ConfigError, MissingError
from trainer.policy.load import check_weights, load_policy, load_tokenizer
from trainer.policy.logprobs import LogprobModel


@pytest.mark.parametrize(("recompute", "calls"), [(False, 1), (True, 2)])
def test_gradient_checkpointing_computes_layers_again_in_the_backward_pass(tmp_path, recompute, calls):
    random_model().save_pretrained(tmp_path)
    config = ModelConfig(name_or_path=str(tmp_path), gradient_checkpointing=recompute)
    policy = load_policy(config, torch.device("cpu"))
    seen = []
    policy.model.layers[0].mlp.register_forward_pre_hook(lambda *_: seen.append(1))
    batch = make_batch()
    scores = LogprobModel(policy, 1.0, 16)(batch.input_ids, batch.prompt_lengths, batch.completion_mask)
    scores.logprobs.sum().backward()
    assert len(seen) == calls


@pytest.fixture
def folder(tmp_path):
    tokenizer = byte_tokenizer()
    random_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("size", [4, 1000])
def test_weights_that_are_cut_short_are_named(folder, size):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    config = ModelConfig(name_or_path=str(folder))
    with pytest.raises(MissingError, match="damaged weights") as caught:
        check_weights(config)
    assert caught.value.where == str(weights)
    with pytest.raises(MissingError, match=r"cannot load the model .* deserializing header"):
        load_policy(config, torch.device("cpu"))


def test_a_folder_without_tokenizer_is_refused(folder):
    assert load_tokenizer(ModelConfig(name_or_path=str(folder))).eos_token == "</s>"
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(MissingError, match="no tokenizer in"):
        load_tokenizer(ModelConfig(name_or_path=str(folder)))


@pytest.mark.parametrize(
    ("kernel", "what", "hint"),
    [
        ("sdpb", "no attention kernel sdpb", "did you mean sdpa?"),
        ("flash_attention_2", "flash_attention_2 is not installed", "model.attn_implementation=sdpa"),
    ],
)
def test_an_attention_kernel_that_is_not_there_is_named(folder, kernel, what, hint):
    with pytest.raises(ConfigError, match=what) as caught:
        load_policy(ModelConfig(name_or_path=str(folder), attn_implementation=kernel), torch.device("cpu"))
    assert caught.value.where == "model.attn_implementation" and hint in caught.value.hint
