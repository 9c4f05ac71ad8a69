"""Batched decoding state for any Hugging Face model.

`trainer.rollouts.shared_prefix` has a faster version for some model families.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from trainer.rollouts.engine import IntegerRows


@dataclass(frozen=True)
class Prefill:
    """Model state after prefilling P prompts, left-padded to L tokens."""

    cache: Cache
    logits: Tensor  # [P, V], for the first completion token
    mask: Tensor  # [P, L] bool, True at prompt tokens
    positions: Tensor  # [P], of the last prompt token


def read_prompts(model: PreTrainedModel, prompts: IntegerRows, pad_token_id: int) -> Prefill:
    """Prefill the prompts, none of which may be empty."""
    length = max(map(len, prompts))
    device = next(model.parameters()).device
    padding = torch.tensor([[length - len(prompt)] for prompt in prompts])
    input_ids = torch.tensor([[pad_token_id] * (length - len(p)) + list(p) for p in prompts])
    positions = torch.arange(length) - padding
    mask = (positions >= 0).to(device)
    position_ids = positions.clamp(min=0).to(device)
    cache = DynamicCache(config=model.config)
    logits = next_logits(model, input_ids.to(device), mask.long(), position_ids, cache)
    return Prefill(cache, logits, mask, position_ids[:, -1])


def next_logits(
    model: PreTrainedModel, input_ids: Tensor, mask: Tensor, position_ids: Tensor, cache: Cache
) -> Tensor:
    """Run the model on ``input_ids`` [B, T], extend the cache, and return the last position's
    logits [B, V].
    """
    # a few model families lack logits_to_keep and return all logits
    keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
    options: dict[str, Any] = {"logits_to_keep": 1} if keeps else {}
    output = model(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=position_ids,
        past_key_values=cache,
        use_cache=True,
        **options,
    )
    logits: Tensor = output.logits[:, -1]
    return logits


class CachedBatch:
    """Rows (completions) decoded one token at a time with the model's own forward.

    Row r starts from a copy of the KV cache of prompt ``prompt_of_row[r]``.
    """

    def __init__(
        self, model: PreTrainedModel, prefill: Prefill, prompt_of_row: Tensor, max_new_tokens: int
    ) -> None:
        self.model = model
        self.logits = prefill.logits[prompt_of_row]
        self._cache = prefill.cache
        self._cache.batch_select_indices(prompt_of_row)
        self._length = prefill.mask.shape[1]
        self._mask = nn.functional.pad(
            prefill.mask[prompt_of_row].long(), (0, max_new_tokens), value=1
        )
        self._positions = prefill.positions[prompt_of_row, None]

    def step(self, tokens: Tensor) -> None:
        """Append one token [R] to every row."""
        self._length += 1
        self._positions = self._positions + 1
        mask = self._mask[:, : self._length]
        self.logits = next_logits(self.model, tokens[:, None], mask, self._positions, self._cache)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self._cache.batch_select_indices(rows)
        self._mask = self._mask[rows]
        self._positions = self._positions[rows]
