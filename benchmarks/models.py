"""The small model of the benchmarks."""

from typing import Any

from transformers import Qwen2Config


def small_qwen2(**settings: Any) -> Qwen2Config:
    """Return a Qwen2 of 3 million parameters with a vocabulary of 128 and no end token, with the
    given changes.
    """
    return Qwen2Config(
        **{
            "vocab_size": 128,
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "bos_token_id": None,
            "eos_token_id": None,
            **settings,
        }
    )
