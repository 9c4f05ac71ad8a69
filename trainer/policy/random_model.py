"""A small, randomly initialized byte-level model for trying out data, reward and sweep."""

import os
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

_SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


def byte_level_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token per byte; ``<s>`` is 0 and ``</s>`` is 1."""
    vocabulary = {"<s>": 0, "</s>": 1}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_random_model(folder: Path) -> None:
    """Save model and tokenizer as `save_pretrained` does.

    Raises:
        OSError: the folder cannot be written.
    """
    byte_tokenizer = byte_level_tokenizer()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<s>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer, clean_up_tokenization_spaces=False, **special
    )
    tokens = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(
            Qwen2Config(vocab_size=byte_tokenizer.get_vocab_size(), **_SHAPE, **tokens)
        )
    disable_progress_bar()  # saving is instantaneous
    # save_pretrained imports DeepSpeed, which would warn about missing GPUs
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
