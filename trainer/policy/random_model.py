"""A small, randomly initialized byte-level model for trying out data, reward and sweep."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

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
    """Write a model with random weights and its tokenizer, in the files of `save_pretrained`.

    Raises:
        OSError: the folder cannot be written.
    """
    byte_tokenizer = byte_level_tokenizer()
    # transformers loads the tokenizer of a Qwen2 folder with NFC, whatever its file says
    byte_tokenizer.normalizer = normalizers.NFC()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer,
        clean_up_tokenization_spaces=False,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<s>",
    )
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=byte_tokenizer.get_vocab_size(),
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
        architectures=[Qwen2ForCausalLM.__name__],
        dtype="float32",
        **_SHAPE,
    )
    with torch.random.fork_rng(devices=[]):  # keeps the caller's random state
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    # The model's own save_pretrained imports DeepSpeed, which then chooses its device for the rest
    # of the process.
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    # without the output layer, which is tied
    weights: dict[str, torch.Tensor] = dict(model.named_parameters())
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
