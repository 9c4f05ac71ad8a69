"""Which ids end a completion, and which are never sampled, for the models that people train.

The token names and the roles are those of the published tokenizer_config.json and
generation_config.json; the ids are those of small tokenizers made here.
"""

import json

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from loptune.errors import ConfigError, MissingError
from tests.refusals import refused
from trainer.config.model import ModelConfig
from trainer.config.schema import TrainConfig
from trainer.policy import load, vocabulary
from trainer.policy.vocabulary import check_prompts, check_vocabulary, unknown_token_ids
from trainer.policy.weights import stored_dtype
from trainer.rollouts.collect import completion_text, sampling_params
from trainer.rollouts.engine import MAX_EXCLUDED, SamplingParams, sampling_options
from trainer.rollouts.transformers import sample_tokens
from trainer.rollouts.vllm.setup import check_excluded

WORDS = ["so", "12", "[UNK]"]
# model: special tokens, EOS and padding of the tokenizer, EOS of the generation configuration, a
# completion, and the text of it that is scored
PUBLISHED = {
    "Qwen2.5-Instruct": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        ("<|im_end|>", "<|endoftext|>"),
        ["<|im_end|>", "<|endoftext|>"],
        ["so", "12", "<|endoftext|>"],
        "so 12",
    ),
    "Qwen3": (
        ["<|endoftext|>", "<|im_end|>", "<think>", "</think>"],
        ("<|im_end|>", "<|endoftext|>"),
        ["<|im_end|>", "<|endoftext|>"],
        ["<think>", "so", "</think>", "12", "<|im_end|>"],
        "<think> so </think> 12",
    ),
    "Llama-3.1-Instruct": (
        ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"],
        ("<|eot_id|>", None),
        ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
        ["<|python_tag|>", "12", "<|eom_id|>"],
        "<|python_tag|> 12",
    ),
    "gemma-3-it": (
        ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"],
        ("<eos>", "<pad>"),
        ["<eos>", "<end_of_turn>"],
        ["so", "12", "<end_of_turn>"],
        "so 12",
    ),
    "DeepSeek-R1-Distill-Qwen": (
        ["<｜end▁of▁sentence｜>", "<｜User｜>", "<think>", "</think>"],
        ("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        "<｜end▁of▁sentence｜>",
        ["<think>", "so", "</think>", "12", "<｜end▁of▁sentence｜>"],
        "<think> so </think> 12",
    ),
    "Phi-4-mini-instruct": (
        ["<|endoftext|>", "<|end|>", "<|tool_call|>"],
        ("<|endoftext|>", "<|endoftext|>"),
        ["<|end|>", "<|endoftext|>"],
        ["<|tool_call|>", "12", "<|end|>"],
        "<|tool_call|> 12",
    ),
    "SmolLM2-Instruct": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        ("<|im_end|>", "<|im_end|>"),
        "<|im_end|>",
        ["so", "<|endoftext|>", "12", "<|im_end|>"],
        "so <|endoftext|> 12",
    ),
    "Mistral-Instruct": (
        ["<s>", "</s>", "[TOOL_CALLS]"],
        ("</s>", None),
        "</s>",
        ["[TOOL_CALLS]", "12", "</s>"],
        "[TOOL_CALLS] 12",
    ),
}


def word_tokenizer(special, eos, pad=None):
    ids = {token: index for index, token in enumerate([*WORDS, *special])}
    words = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=eos, pad_token=pad)
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    return tokenizer


def folder_of_model(folder, rows, generation=None):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": rows}
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 3}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return TrainConfig(model=ModelConfig(name_or_path=str(folder)))


@pytest.mark.parametrize("model", PUBLISHED)
def test_every_end_of_a_published_model_ends_its_completions(model, tmp_path):
    special, (eos, pad), generation, completion, text = PUBLISHED[model]
    tokenizer = word_tokenizer(special, eos, pad)
    ids = tokenizer.get_vocab()
    ends = [ids[end] for end in generation] if isinstance(generation, list) else ids[generation]
    config = folder_of_model(tmp_path, len(ids) + 2, {"eos_token_id": ends})
    params = sampling_params(config, tokenizer)
    assert params.stop_token_ids[0] == ids[eos]
    assert set(params.stop_token_ids) == {ids[eos], *(ends if isinstance(ends, list) else [ends])}
    assert params.excluded_token_ids == (len(ids), len(ids) + 1)
    tokens = [ids[token] for token in completion]
    assert tokens[-1] in params.stop_token_ids
    assert not set(tokens[:-1]) & set(params.stop_token_ids)
    assert completion_text(tokenizer, tokens, params.stop_token_ids) == text


def test_padding_behind_a_completion_is_no_text_and_padding_inside_is():
    tokenizer = word_tokenizer(["<eos>", "<pad>"], "<eos>", "<pad>")
    ids = tokenizer.get_vocab()
    pad = ids["<pad>"]
    tokens = [ids["so"], pad, ids["12"], pad, pad]
    for stopped in (tokens, [*tokens, ids["<eos>"]]):
        assert completion_text(tokenizer, stopped, (ids["<eos>"],)) == "so <pad> 12"
    assert completion_text(tokenizer, [ids["<eos>"]], (ids["<eos>"],)) == ""
    assert completion_text(tokenizer, [], (ids["<eos>"],)) == ""


def test_stop_ids_of_config_and_run_are_joined_without_unknown_ids(tmp_path):
    tokenizer = word_tokenizer(["<eos>", "<end>"], "<eos>")
    config = folder_of_model(tmp_path, 5)  # no generation_config.json: config.json says 3
    assert sampling_params(config, tokenizer).stop_token_ids == (3,)
    (tmp_path / "other").mkdir()
    config = folder_of_model(tmp_path / "other", 5, {"eos_token_id": [4, 99, -1, 3]})
    assert sampling_params(config, tokenizer).stop_token_ids == (3, 4)
    config = config.model_copy(
        update={"rollout": config.rollout.model_copy(update={"stop_token_ids": [1, 4]})}
    )
    assert sampling_params(config, tokenizer).stop_token_ids == (3, 4, 1)


def test_a_damaged_generation_configuration_is_an_error(tmp_path):
    config = folder_of_model(tmp_path, 5)
    (tmp_path / "generation_config.json").write_text("{")
    with refused("model-unreadable", MissingError):
        sampling_params(config, word_tokenizer(["<eos>"], "<eos>"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_excluded_id_is_never_sampled_others_take_its_mass(temperature):
    logits = torch.tensor([[0.0, 1.0, 9.0, 9.0]]).repeat(200, 1)
    uniforms = torch.linspace(0, 1, 201, dtype=torch.float64)[:-1]
    params = SamplingParams(temperature, excluded_token_ids=(2, 3))
    tokens, logprobs = sample_tokens(logits, uniforms, params)
    assert set(tokens.tolist()) == ({1} if temperature == 0 else {0, 1})
    expected = torch.log_softmax(torch.tensor([0.0, 1.0]), dim=0)[tokens]
    torch.testing.assert_close(logprobs, expected)
    assert logits.max() == 9.0  # the caller's logits are as they were


def test_vllm_is_told_of_excluded_ids_by_a_bias():
    options = sampling_options(SamplingParams(1.0, excluded_token_ids=(7, 9)), seed=1)
    assert set(options["logit_bias"]) == {7, 9} and max(options["logit_bias"].values()) < -1e6
    assert sampling_options(SamplingParams(1.0), seed=1)["logit_bias"] is None
    check_excluded(MAX_EXCLUDED)
    with refused("too-many-excluded", ConfigError, key="rollout.engine"):
        check_excluded(MAX_EXCLUDED + 1)


def test_ids_between_tokens_are_unknown_like_those_behind_them():
    tokenizer = word_tokenizer(["<eos>"], "<eos>")
    tokenizer.get_vocab = lambda: {"a": 0, "b": 3}
    assert unknown_token_ids(tokenizer, 6) == (1, 2, 4, 5)
    assert unknown_token_ids(tokenizer, 1) == ()


def test_tokens_without_an_embedding_are_refused_if_text_can_hold_them():
    tokenizer = word_tokenizer(["<eos>", "<think>"], "<eos>")
    check_vocabulary(tokenizer, 5, "m")
    with refused("tokenizer-too-large", ConfigError) as caught:
        check_vocabulary(tokenizer, 4, "m")
    assert "<think>" in caught.value.what and "4 rows" in caught.value.what
    with refused("tokenizer-too-large", ConfigError) as caught:
        check_vocabulary(tokenizer, 3, "m")
    assert "<eos>" in caught.value.what
    words = Tokenizer(models.WordLevel({"so": 0, "<eos>": 1, "<image>": 2}, unk_token="so"))
    gemma = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<eos>", extra_special_tokens={"image_token": "<image>"}
    )
    check_vocabulary(gemma, 2, "m")
    check_prompts([[0, 1], []], 2)
    with refused("token-without-row", ConfigError, names=("token id 2",)):
        check_prompts([[0, 1], [0, 2]], 2)


def test_an_adapters_tokenizer_and_end_tokens_are_of_its_base_models_revision(
    tmp_path, monkeypatch
):
    settings = {"peft_type": "LORA", "base_model_name_or_path": "org/m", "revision": "v1"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    (tmp_path / "adapter_model.safetensors").touch()
    config = ModelConfig(name_or_path=str(tmp_path))
    monkeypatch.setattr(load, "hub_is_reachable", lambda: True)
    asked = []

    def refuse(name, **options):
        asked.append((name, options["revision"]))
        raise OSError("asked")

    for loader in (load.AutoTokenizer, load.PreTrainedTokenizerFast, vocabulary.AutoConfig):
        monkeypatch.setattr(loader, "from_pretrained", refuse)
    for read in (load.load_tokenizer, vocabulary.end_token_ids, stored_dtype):
        with pytest.raises((MissingError, OSError)):
            read(config)
    assert set(asked) == {("org/m", "v1")} and len(asked) == 4


@pytest.mark.parametrize(
    ("failure", "ends"),
    [(LocalEntryNotFoundError("no answer"), None), (EntryNotFoundError("404"), (7,))],
)
def test_end_tokens_of_config_json_are_used_only_if_the_hub_has_no_others(
    monkeypatch, failure, ends
):
    def refuse(*_, **__):
        raise failure

    monkeypatch.setattr(vocabulary, "hf_hub_download", refuse)
    monkeypatch.setattr(vocabulary.constants, "is_offline_mode", lambda: False)
    monkeypatch.setattr(vocabulary.GenerationConfig, "from_pretrained", refuse)
    monkeypatch.setattr(load, "hub_is_reachable", lambda: True)
    monkeypatch.setattr(
        vocabulary.AutoConfig, "from_pretrained", lambda *_, **__: LlamaConfig(eos_token_id=7)
    )
    config = ModelConfig(name_or_path=f"org/{type(failure).__name__}")
    if ends is None:
        with refused("model-unreadable", MissingError, names=("generation_config.json",)):
            vocabulary.end_token_ids(config)
    else:
        assert vocabulary.end_token_ids(config) == ends
