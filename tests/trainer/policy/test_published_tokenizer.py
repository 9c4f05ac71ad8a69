"""The tokenizer that trains against the published ``tokenizer.json``."""

import json

import pytest
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from loptune.errors import ConfigError
from tests.conftest import random_model
from tests.refusals import refused
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.config.model import ModelConfig
from trainer.policy import load
from trainer.policy.load import load_tokenizer
from trainer.policy.published_tokenizer import SAMPLES, difference, published_tokenizer
from trainer.rollouts.collect import completion_text


def model_folder(tmp_path, tokenizer, tokenizer_class):
    """A model's folder whose tokenizer_config.json names a class."""
    random_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("backend", None)
    path.write_text(json.dumps(settings | {"tokenizer_class": tokenizer_class}))
    return ModelConfig(name_or_path=str(tmp_path))


@pytest.mark.parametrize(
    "tokenizer_class",
    # T5's class cannot be built from a BPE model
    ["PreTrainedTokenizerFast", "LlamaTokenizerFast", "GPT2Tokenizer", "T5TokenizerFast"],
)
def test_the_tokens_are_those_of_tokenizer_json_whatever_class_is_named(tmp_path, tokenizer_class):
    config = model_folder(tmp_path, byte_tokenizer(), tokenizer_class)
    tokenizer = load_tokenizer(config)
    published = published_tokenizer(str(tmp_path))
    for text in SAMPLES:
        assert tokenizer.encode(text, add_special_tokens=False) == published.encode(text).ids
    assert difference(tokenizer, published, SAMPLES) is None


def test_a_tokenizer_that_cannot_be_had_as_published_is_refused(tmp_path, monkeypatch):
    config = model_folder(tmp_path, byte_tokenizer(), "LlamaTokenizerFast")
    rebuilt = load.AutoTokenizer.from_pretrained(tmp_path)
    monkeypatch.setattr(load.PreTrainedTokenizerFast, "from_pretrained", lambda *_, **__: rebuilt)
    with refused("tokenizer-not-as-published", ConfigError, names=("15.50",)):
        load_tokenizer(config)


@pytest.mark.parametrize("content", ['{"version": "1.0"', '{"version": "1.0"}'])
def test_a_damaged_file_is_refused(tmp_path, content):
    config = model_folder(tmp_path, byte_tokenizer(), "PreTrainedTokenizerFast")
    (tmp_path / "tokenizer.json").write_text(content)
    with refused("model-unreadable", names=(str(tmp_path),)):
        load_tokenizer(config)


def test_a_file_that_truncates_and_pads_is_compared_without_both(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(max_length=4)
    tokenizer.backend_tokenizer.enable_padding(length=64)
    tokenizer.save_pretrained(tmp_path)
    published = published_tokenizer(str(tmp_path))
    assert len(published.encode("a text of more than four bytes").ids) == 30


def sentencepiece_tokenizer():
    """Words with a leading space, which decoding drops before the first, as SentencePiece's."""
    words = ["<unk>", "<eos>", *("▁" + word for word in ("The", "answer", "is", "42"))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    )


def test_a_completion_keeps_the_space_before_its_first_word():
    tokenizer = sentencepiece_tokenizer()
    prompt = tokenizer.encode("The answer is")
    completion = [*tokenizer.encode("42"), tokenizer.eos_token_id]
    assert tokenizer.decode(completion[:-1]) == "42"
    assert completion_text(tokenizer, completion, (1,), prompt_ids=prompt) == " 42"
    assert completion_text(tokenizer, completion, (1,)) == "42"


def test_a_completion_may_continue_a_character_that_the_prompt_begins():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("é", add_special_tokens=False)
    assert len(ids) == 2
    text = completion_text(tokenizer, [ids[1], *tokenizer.encode("a")], (), prompt_ids=ids[:1])
    assert text.endswith("a") and len(text) == 2


def test_an_adapters_own_tokenizer_is_used_instead_of_its_base_models(tmp_path):
    base = tmp_path / "base"
    model_folder(base, byte_tokenizer(), "PreTrainedTokenizerFast")
    adapter = tmp_path / "adapter"
    model = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(adapter)
    config = ModelConfig(name_or_path=str(adapter))
    assert load_tokenizer(config).chat_template is None
    own = byte_tokenizer("{{ messages[0]['content'] }}")
    own.save_pretrained(adapter)
    assert load_tokenizer(config).chat_template == "{{ messages[0]['content'] }}"
