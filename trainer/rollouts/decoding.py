"""State of a batch that is decoded token by token.

`CachedBatch` runs any Hugging Face model's own forward. `SharedPrefixBatch` is faster; it is used
for models built like Llama, for which both classes give the same logits up to rounding.

In a `SharedPrefixBatch`, completions of a prompt share its keys and values and append their own to
growing buffers. Attention is one softmax over both parts. A step calls the layers' linear modules
directly and skips the rest of the transformers forward: for a small model, masks and cache objects
cost more than the arithmetic. docs/explanation/benchmarks.md has the speedup.

Shapes: P prompts, L length of the longest prompt, R rows (completions), S maximum rows per prompt,
V vocabulary size, H query heads, K key heads, n = H / K, D head size, t completion tokens so far.
Heads precede rows, [K, R, ...], so that the rows of a prompt are adjacent and [K * R, n, D] can be
viewed as [K * P, S * n, D] while all prompts have S rows.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from trainer.cpu.linear import side_by_side
from trainer.rollouts.engine import IntegerRows

Operation = Callable[[Tensor], Tensor]
MIN_GROWTH = 8  # minimum growth of the KV buffers, in positions
# largest difference between the logits of the two batches that rounding explains, as a fraction of
# the logits' spread
_AGREEMENT = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
_FAR = 2**24  # position beyond the length of any model


@dataclass(frozen=True)
class Prefill:
    """Model state after prefilling P prompts, left-padded to L tokens."""

    cache: Cache
    logits: Tensor  # [P, V], for the first completion token
    mask: Tensor  # [P, L] bool, True at prompt tokens
    positions: Tensor  # [P], position of the last prompt token


def prefill_prompts(model: PreTrainedModel, prompts: IntegerRows, pad_token_id: int) -> Prefill:
    """Prefill the prompts, none of which may be empty. ``pad_token_id`` may be any valid token
    id.
    """
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
    """Run the model on ``input_ids`` and ``position_ids`` [B, T], extend the cache, and return the
    last position's logits [B, V]. ``mask`` covers the cached positions as well: [B, cached + T].
    """
    output = model(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=position_ids,
        use_cache=True,
        **_cache_and_logits(type(model).forward, cache),
    )
    logits: Tensor = output.logits[:, -1]
    return logits


def _cache_and_logits(forward: Callable[..., Any], cache: Cache) -> dict[str, Any]:
    """Return the arguments that make a model use the cache and, if its class can, compute the
    logits of the last position only.

    Args:
        forward: the forward function of the model's class.
        cache: keys and values of the positions so far.
    """
    accepted = _parameters(forward)
    # the name since transformers 5.24; a model's own code may still have the old one
    options: dict[str, Any] = {"cache" if "cache" in accepted else "past_key_values": cache}
    if "logits_to_keep" in accepted:
        options["logits_to_keep"] = 1
    return options


@functools.cache  # it is called for every token
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


class CachedBatch:
    """Rows (completions) decoded one token at a time with the model's own forward.

    Row r starts from a copy of the KV cache of prompt ``prompt_of_row[r]``. At most
    ``max_new_tokens`` tokens can be appended to it.
    """

    def __init__(
        self, model: PreTrainedModel, prefill: Prefill, prompt_of_row: Tensor, max_new_tokens: int
    ) -> None:
        self.model = model
        self.logits = prefill.logits[prompt_of_row]
        self._cache = prefill.cache
        self._cache.reorder_cache(prompt_of_row)
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
        self._cache.reorder_cache(rows)
        self._mask = self._mask[rows]
        self._positions = self._positions[rows]


def fastest_batch(
    model: PreTrainedModel, pad_token_id: int
) -> "type[SharedPrefixBatch | CachedBatch]":
    """Return `SharedPrefixBatch` if it gives the logits of the model's own forward, else
    `CachedBatch`.
    """
    return SharedPrefixBatch if _shares_prefixes(model, pad_token_id) else CachedBatch


@torch.no_grad()
def _shares_prefixes(model: PreTrainedModel, pad_token_id: int) -> bool:
    """Return whether both classes give the same logits on three completions of two short prompts.

    Models whose attention or rotary angles change beyond some length or position would pass this
    test, so they are excluded.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    tokens = torch.arange(12, device=model.device) * 7 % vocabulary
    prompt_of_row = torch.tensor([0, 0, 1], device=model.device)
    prompts = [tokens[:5].tolist(), tokens[5:8].tolist()]
    prefill = prefill_prompts(model, prompts, pad_token_id)
    if any(prefill.cache.is_sliding):
        return False
    try:
        if _angles_depend_on_length(model) or _scales_with_position(model, tokens[:8]):
            return False
        shared = SharedPrefixBatch(model, prefill, prompt_of_row, max_new_tokens=2)
        own = CachedBatch(model, prefill, prompt_of_row, max_new_tokens=2)
        for token in tokens[8:10]:
            shared.step(token.expand(3))
            own.step(token.expand(3))
    # raised for other types of cache layers
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return False
    expected = own.logits.float()
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm()
    return bool((shared.logits - expected).norm() <= _AGREEMENT[own.logits.dtype] * spread)


def _angles_depend_on_length(model: PreTrainedModel) -> bool:
    """Return whether the rotary angles of the first positions change if the input also has a
    distant position.
    """
    rotary: Any = model.model.rotary_emb
    states = torch.zeros(1, device=model.device, dtype=model.dtype)
    near = torch.arange(8, device=model.device)[None]
    far = torch.cat([near, near.new_full((1, 1), _FAR)], dim=-1)
    # distant positions first, because the module keeps the angles of its last call, which must be
    # those of near positions
    with_far: Tensor = rotary(states, far)[0]
    alone: Tensor = rotary(states, near)[0]
    return not torch.equal(with_far[:, : near.shape[1]], alone)


def _scales_with_position(model: PreTrainedModel, tokens: Tensor) -> bool:
    """Return whether far positions change the logits of the model's own forward by more than their
    rotary angles, as in Ministral 3, which scales queries by their position.
    """
    rotary: Any = model.model.rotary_emb
    states = torch.zeros(1, device=model.device, dtype=model.dtype)
    near = torch.arange(len(tokens), device=model.device)[None]
    # the angles of far positions are too coarse to compare their logits
    angles = rotary(states, near)
    hook = rotary.register_forward_hook(lambda *_: angles)
    try:
        expected, shifted = (
            next_logits(
                model,
                tokens[None],
                torch.ones_like(near),
                positions,
                DynamicCache(config=model.config),
            )
            for positions in (near, near + _FAR)
        )
    finally:
        hook.remove()
    return not torch.equal(shifted, expected)


class SharedPrefixBatch:
    """Drop-in replacement for `CachedBatch` for models that `fastest_batch` accepts.

    ``prompt_of_row`` [R], the prompt index of each row, must be ascending.
    """

    def __init__(
        self, model: PreTrainedModel, prefill: Prefill, prompt_of_row: Tensor, max_new_tokens: int
    ) -> None:
        body: Any = model.model
        self._blocks = [_Block(layer, len(prompt_of_row)) for layer in body.layers]
        self._embedding = body.embed_tokens.weight
        self._norm = _norm(body.norm)
        self._head = model.lm_head
        self.logits = prefill.logits[prompt_of_row]
        self._prompt_of_row = prompt_of_row
        self._arrangement = _PromptGrid(prompt_of_row, len(prefill.mask))
        self._layers = [
            _LayerCache(layer.keys, layer.values, len(prompt_of_row))
            for layer in prefill.cache.layers
        ]
        mask = torch.zeros(prefill.mask.shape, dtype=model.dtype, device=prefill.mask.device)
        mask = mask.masked_fill_(~prefill.mask, -torch.inf)[:, None]
        self._mask = mask.repeat(prefill.cache.layers[0].keys.shape[1], 1, 1)  # [K * P, 1, L]
        self._positions = prefill.positions[prompt_of_row]
        every_position = torch.arange(prefill.mask.shape[1] + max_new_tokens, device=mask.device)
        cos, sin = body.rotary_emb(mask, every_position[None])
        half = sin.shape[-1] // 2
        # [positions, D]
        self._cos = cos[0]
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)

    def select(self, rows: Tensor) -> None:
        """Keep these rows only (ascending indices)."""
        for layer in self._layers:
            layer.select(rows)
        self._positions = self._positions[rows]
        self._prompt_of_row = self._prompt_of_row[rows]
        self._arrangement = _PromptGrid(self._prompt_of_row, self._arrangement.n_prompts)

    def step(self, tokens: Tensor) -> None:
        """Append one token [R] to every row."""
        self.logits = self._head(self._next_hidden(tokens))

    # inference_mode is cheaper than no_grad. The head is called outside of it, because hooks may
    # store its tensors.
    @torch.inference_mode()
    def _next_hidden(self, tokens: Tensor) -> Tensor:
        """Return the next hidden states, [R, hidden]."""
        self._positions = self._positions + 1
        rotation = self._cos[self._positions, None], self._sin[self._positions, None]  # [R, 1, D]
        hidden = functional.embedding(tokens, self._embedding)  # [R, hidden]
        for block, states in zip(self._blocks, self._layers, strict=True):
            hidden = hidden + self._attend(block, states, block.input_norm(hidden), rotation)
            x = block.mlp_norm(hidden)
            hidden = hidden + block.down(block.activation(block.gate(x)) * block.up(x))
        return self._norm(hidden)

    def _attend(
        self, block: "_Block", states: "_LayerCache", x: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Attend from one new token per row, x [R, hidden], to its prompt and completion."""
        rows = x.shape[0]
        size = block.head_size
        n = block.group
        states_of_heads = block.query_key_value(x).view(rows, -1, size)
        key_heads = states_of_heads.shape[1] // (n + 2)
        heads, values = states_of_heads.split(((n + 1) * key_heads, key_heads), dim=1)
        # rotary embedding; the sign of the rotation is folded into `sin`
        cos, sin = rotation
        heads = torch.addcmul(heads * cos, heads.roll(size // 2, dims=-1), sin)
        states.append(heads[:, n * key_heads :].transpose(0, 1), values.transpose(0, 1))

        queries = (
            heads[:, : n * key_heads].view(rows, key_heads, n, size).transpose(0, 1) * block.scaling
        )
        arrangement = self._arrangement
        prompt_scores = torch.baddbmm(
            self._mask, arrangement.to_prompts(queries), states.prompt_keys
        )
        own_scores = torch.bmm(queries.reshape(-1, n, size), states.keys).view(
            key_heads, rows, n, -1
        )
        scores = torch.cat((arrangement.to_rows(prompt_scores, key_heads), own_scores), dim=-1)
        # [K, R, n, L + t]
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
        length = states.prompt_values.shape[1]
        prompt_output = torch.bmm(
            arrangement.to_prompts(weights[..., :length]), states.prompt_values
        )
        output = torch.baddbmm(
            arrangement.to_rows(prompt_output, key_heads).flatten(0, 1),
            weights[..., length:].flatten(0, 1),
            states.values,
        )
        return block.output(output.view(key_heads, rows, -1).transpose(0, 1).reshape(rows, -1))


class _Block:
    """The operations of one layer with attributes resolved once, because module lookups cost more
    than some operations.
    """

    def __init__(self, layer: Any, rows: int) -> None:
        attention = layer.self_attn
        mlp = layer.mlp
        self.head_size: int = attention.head_dim
        self.group: int = attention.num_key_value_groups
        self.scaling: float = attention.scaling
        self.input_norm = _norm(layer.input_layernorm)
        self.mlp_norm = _norm(layer.post_attention_layernorm)
        self.query_key_value = side_by_side(
            [attention.q_proj, attention.k_proj, attention.v_proj], rows
        )
        self.output = side_by_side([attention.o_proj], rows)
        self.gate = side_by_side([mlp.gate_proj], rows)
        self.up = side_by_side([mlp.up_proj], rows)
        self.down = side_by_side([mlp.down_proj], rows)
        self.activation: Operation = mlp.act_fn


def _norm(norm: Any) -> Operation:
    return partial(
        torch.rms_norm,
        normalized_shape=norm.weight.shape,
        weight=norm.weight,
        eps=norm.variance_epsilon,
    )


class _PromptGrid:
    """Index mapping between rows [R] and a dense [P, S] layout by prompt; unused slots repeat some
    row.
    """

    def __init__(self, prompt_of_row: Tensor, n_prompts: int) -> None:
        self.n_prompts = n_prompts
        counts = torch.bincount(prompt_of_row, minlength=n_prompts)
        first = counts.cumsum(0) - counts
        size = int(counts.max())
        places = torch.arange(size, device=counts.device)
        numbers = torch.arange(len(prompt_of_row), device=counts.device)
        self._dense = n_prompts * size == len(prompt_of_row)
        # [P * S]
        self._row_of_place = (first[:, None] + places).clamp_(max=len(prompt_of_row) - 1).flatten()
        self._slot_of_row = prompt_of_row * size + numbers - first[prompt_of_row]  # [R]

    def to_prompts(self, states: Tensor) -> Tensor:
        """Rearrange rows [K, R, n, d] to prompts [K * P, S * n, d]."""
        heads, _, _, d = states.shape
        if not self._dense:
            states = states.index_select(1, self._row_of_place)
        return states.reshape(heads * self.n_prompts, -1, d)

    def to_rows(self, states: Tensor, heads: int) -> Tensor:
        """Invert `to_prompts`."""
        states = states.view(heads, self._row_of_place.shape[0], -1, states.shape[-1])
        return states if self._dense else states.index_select(1, self._slot_of_row)


class _LayerCache:
    """KV cache of one layer: keys and values of the prompts, given as [P, K, L, D], and growing
    buffers for the rows.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows: int) -> None:
        self.prompt_keys = keys.permute(1, 0, 3, 2).flatten(0, 1).contiguous()  # [K * P, D, L]
        self.prompt_values = values.transpose(0, 1).flatten(0, 1)  # [K * P, L, D]
        self._buffers = [
            states.new_empty(states.shape[1], rows, 0, states.shape[3]) for states in (keys, values)
        ]
        self._length = 0

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Append the keys and the values of one position, both [K, R, D]."""
        if self._length == self._buffers[0].shape[2]:
            self._grow()
        self._buffers[0][:, :, self._length] = keys
        self._buffers[1][:, :, self._length] = values
        self._length += 1

    def _grow(self) -> None:
        """Grow the buffers slightly. More spare capacity would space rows out in memory and cause
        CPU cache conflicts.
        """
        capacity = self._length + max(MIN_GROWTH, self._length // 8)
        for i, buffer in enumerate(self._buffers):
            heads, rows, _, size = buffer.shape
            self._buffers[i] = buffer.new_empty(heads, rows, capacity, size)
            self._buffers[i][:, :, : self._length] = buffer

    @property
    def keys(self) -> Tensor:
        """Keys of the completions, [K * R, D, t]."""
        return self._buffers[0].flatten(0, 1)[:, : self._length].transpose(1, 2)

    @property
    def values(self) -> Tensor:
        """Values of the completions, [K * R, t, D]."""
        return self._buffers[1].flatten(0, 1)[:, : self._length]

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in smaller buffers."""
        for i, buffer in enumerate(self._buffers):
            kept = buffer.new_empty(len(buffer), len(rows), *buffer.shape[2:])
            kept[:, :, : self._length] = buffer[:, rows, : self._length]
            self._buffers[i] = kept
