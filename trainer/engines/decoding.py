"""A Hugging Face model's state between the tokens of a batch: KV cache, masks and positions.

Completions of one prompt share its keys and values, which exist once per prompt; each completion's own are
appended in place to preallocated buffers. Attention over both parts is one softmax over two products. Letters:
P prompts, L tokens of the longest one, R rows (completions), S rows of the prompt that has most, H query heads,
K key heads, D head size.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

SHARED_PREFIX_ATTENTION = "loptune_shared_prefix"


class DecodingBatch:
    """Rows that grow by one token at a time; ``logits`` [R, V] predict their next tokens.

    Args:
        model: a Hugging Face causal language model.
        prompts: token ids of the P prompts, none empty.
        prompt_of_row: [R], which prompt each completion continues, ascending.
        max_new_tokens: room for the completions.
        pad_token_id: any valid id.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        prompt_of_row: Tensor,
        max_new_tokens: int,
        pad_token_id: int,
    ) -> None:
        self.model = model
        self.cache = Cache(layer_class_to_replicate=_DecodingLayer)
        # A few families return the logits of all positions only.
        keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._options: dict[str, Any] = {"use_cache": True, **({"logits_to_keep": 1} if keeps else {})}
        self._sharing = can_share_prefix(model)
        self._length = max(map(len, prompts))
        device = next(model.parameters()).device
        padding = torch.tensor([[self._length - len(prompt)] for prompt in prompts])
        input_ids = torch.tensor([[pad_token_id] * (self._length - len(p)) + list(p) for p in prompts])
        positions = torch.arange(self._length)
        prompt_mask = (positions >= padding).to(device)  # [P, L]
        position_ids = (positions - padding).clamp_(min=0).to(device)
        logits = self._forward(input_ids.to(device), prompt_mask.long(), position_ids)

        self.logits, self._positions = logits[prompt_of_row], position_ids[prompt_of_row, -1:]
        for layer in self.cache.layers:
            layer.make_room(prompt_of_row, max_new_tokens, self._sharing)
        if self._sharing:
            self._prompt_of_row = prompt_of_row
            self._mask = torch.zeros(prompt_mask.shape, dtype=model.dtype, device=device)
            self._mask = self._mask.masked_fill_(~prompt_mask, -torch.inf)[:, None, None]
            self._slots = _Slots(prompt_of_row, len(prompts))
        else:
            self._mask = nn.functional.pad(prompt_mask[prompt_of_row].long(), (0, max_new_tokens), value=1)

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these (ascending indices)."""
        for layer in self.cache.layers:
            layer.select(rows)
        self._positions = self._positions[rows]
        if self._sharing:
            self._prompt_of_row = self._prompt_of_row[rows]
            self._slots = _Slots(self._prompt_of_row, len(self._mask))
        else:
            self._mask = self._mask[rows]

    def step(self, tokens: Tensor) -> None:
        """Append one token [R] to every row."""
        self._length += 1
        self._positions = self._positions + 1
        with _attention(self.model, SHARED_PREFIX_ATTENTION) if self._sharing else nullcontext():
            mask = self._mask if self._sharing else self._mask[:, : self._length]
            shared = {"shared_prefix": (self.cache, self._slots)} if self._sharing else {}
            self.logits = self._forward(tokens[:, None], mask, self._positions, **shared)

    def _forward(self, input_ids: Tensor, mask: Tensor, position_ids: Tensor, **shared: Any) -> Tensor:
        output = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=self.cache,
            **self._options,
            **shared,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


def can_share_prefix(model: PreTrainedModel) -> bool:
    """Whether the family takes a registered attention function and attends to everything in every layer."""
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None)
    full = (
        set(layer_types) == {"full_attention"} if layer_types else getattr(config, "sliding_window", None) is None
    )
    return full and config._attn_implementation == "sdpa" and getattr(model, "_supports_attention_backend", False)


class _Slots:
    """Where rows sit in a [P, S] arrangement by prompt, with repeated rows in the places left over."""

    def __init__(self, prompt_of_row: Tensor, n_prompts: int) -> None:
        counts = torch.bincount(prompt_of_row, minlength=n_prompts)
        starts = counts.cumsum(0) - counts
        self.size = int(counts.max())
        offsets = torch.arange(self.size, device=counts.device)
        self.is_dense = bool((counts == self.size).all())
        self._rows = (starts[:, None] + offsets).clamp_(max=len(prompt_of_row) - 1).flatten()  # [P * S]
        self._slot_of_row = prompt_of_row * self.size + (
            torch.arange(len(prompt_of_row), device=counts.device) - starts[prompt_of_row]
        )

    def to_prompts(self, states: Tensor) -> Tensor:
        """[R, K, n, D] of rows to [P, K, S * n, D] of prompts."""
        if not self.is_dense:
            states = states[self._rows]
        _, heads, n, size = states.shape
        return states.view(-1, self.size, heads, n, size).transpose(1, 2).reshape(-1, heads, self.size * n, size)

    def to_rows(self, states: Tensor, n: int) -> Tensor:
        """The inverse of ``to_prompts``."""
        prompts, heads, _, size = states.shape
        states = states.view(prompts, heads, self.size, n, size).transpose(1, 2).reshape(-1, heads, n, size)
        return states if self.is_dense else states[self._slot_of_row]


def shared_prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float,
    shared_prefix: tuple[Cache, _Slots],
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one new token per row to its prompt and to its own completion.

    Args:
        module: the attention layer.
        query: [R, H, 1, D].
        key: [R, K, t, D] of the completions; ``value`` likewise.
        value: see ``key``.
        attention_mask: [P, 1, 1, L], -inf at the prompts' padding.
        scaling: factor of the products.
        shared_prefix: the cache with the prompts' keys and values, and the arrangement of the rows.
        kwargs: what other attention functions use.

    Returns:
        [R, 1, H, D] and no attention weights.
    """
    cache, slots = shared_prefix
    layer = cache.layers[module.layer_idx]
    prompt_length = layer.prompt_keys.shape[2]
    rows, heads, _, size = query.shape
    n = heads // key.shape[1]  # query heads per key head
    query = (query * scaling).view(rows, -1, n, size)
    prompt_scores = slots.to_prompts(query) @ layer.prompt_keys.transpose(-1, -2) + attention_mask
    scores = torch.cat((slots.to_rows(prompt_scores, n), query @ key.transpose(-1, -2)), dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    prompt_output = slots.to_prompts(weights[..., :prompt_length]) @ layer.prompt_values
    output = slots.to_rows(prompt_output, n) + weights[..., prompt_length:] @ value
    return output.reshape(rows, 1, heads, -1), None


AttentionInterface.register(SHARED_PREFIX_ATTENTION, shared_prefix_attention)


@contextmanager
def _attention(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    previous = model.config._attn_implementation
    model.config._attn_implementation = implementation
    try:
        yield
    finally:
        model.config._attn_implementation = previous


class _DecodingLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of one layer: those of the prompts, and buffers [R, K, capacity, D] filled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0  # of the whole sequence
        self.shared_length = 0  # of the part that is not in the buffers
        self.prompt_keys: Tensor | None = None
        self.prompt_values: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keep the prefill's tensors as they are; later append, and return what is in the buffers."""
        start, self.length = self.length, self.length + key_states.shape[-2]
        if not self.is_initialized:
            self.is_initialized: bool = True
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        place = slice(start - self.shared_length, self.length - self.shared_length)
        self.keys[:, :, place] = key_states
        self.values[:, :, place] = value_states
        return self.keys[:, :, : place.stop], self.values[:, :, : place.stop]

    def get_seq_length(self) -> int:
        """Tokens seen so far, padding counted."""
        return self.length

    def make_room(self, prompt_of_row: Tensor, max_new_tokens: int, share_prompts: bool) -> None:
        """Make buffers for the rows; without sharing, they begin with a copy of the row's prompt."""
        if share_prompts:
            self.prompt_keys, self.prompt_values = self.keys.contiguous(), self.values.contiguous()
            self.shared_length = self.length
        capacity = self.length - self.shared_length + max_new_tokens
        for name in ("keys", "values"):
            states = getattr(self, name)
            buffer = states.new_empty(len(prompt_of_row), states.shape[1], capacity, states.shape[3])
            if not share_prompts:
                buffer[:, :, : self.length] = states[prompt_of_row]
            setattr(self, name, buffer)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, at the front of the same buffers."""
        used = self.length - self.shared_length
        for name in ("keys", "values"):
            buffer = getattr(self, name)
            buffer[: len(rows), :, :used] = buffer[rows, :, :used]
            setattr(self, name, buffer[: len(rows)])
