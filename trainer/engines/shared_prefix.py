"""A lean decoding step for Llama and Qwen2 models.

Completions of one prompt share its keys and values, which exist once per prompt, and append their own in place to
preallocated buffers; attention is one softmax over two products. The layers' own linear modules and weights are
used; what a forward pass of transformers does around them for every token (masks, cache objects, norms in seven
operations) costs more than the arithmetic of a small model.

Letters: P prompts, L tokens of the longest one, R rows (completions), S rows of the prompt that has most, H query
heads, K key heads, n = H / K, D head size, t tokens completed.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from trainer.engines.decoding import Prefill

FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM)


def is_supported(model: PreTrainedModel) -> bool:
    """Whether the step below is this model's: a known family that attends to everything in every layer."""
    layer_types = getattr(model.config, "layer_types", None) or ["full_attention"]
    return type(model) in FAMILIES and set(layer_types) == {"full_attention"}


class SharedPrefixBatch:
    """Rows that grow by one token at a time (a `trainer.engines.decoding.DecodingBatch`).

    Args:
        model: a model that ``is_supported``.
        prefill: the prompts.
        prompt_of_row: [R], the prompt that each row continues, ascending.
        max_new_tokens: limit of steps.
    """

    def __init__(
        self, model: PreTrainedModel, prefill: Prefill, prompt_of_row: Tensor, max_new_tokens: int
    ) -> None:
        self.model = model
        self.logits = prefill.logits[prompt_of_row]
        self._positions = prefill.positions[prompt_of_row]
        self._prompt_of_row = prompt_of_row
        self._arrangement = _Arrangement(prompt_of_row, len(prefill.mask))
        self._layers = [
            _KeysValues(layer.keys, layer.values, len(prompt_of_row), max_new_tokens)
            for layer in prefill.cache.layers
        ]
        mask = torch.zeros(prefill.mask.shape, dtype=model.dtype, device=prefill.mask.device)
        mask = mask.masked_fill_(~prefill.mask, -torch.inf)
        heads = self._layers[0].prompt_values.shape[0] // len(mask)
        self._mask = mask.repeat_interleave(heads, dim=0)[:, None]  # [P * K, 1, L]

    def select(self, rows: Tensor) -> None:
        """Keep these rows only (ascending indices)."""
        for layer in self._layers:
            layer.select(rows)
        self._positions, self._prompt_of_row = self._positions[rows], self._prompt_of_row[rows]
        self._arrangement = _Arrangement(self._prompt_of_row, self._arrangement.n_prompts)

    def step(self, tokens: Tensor) -> None:
        """Append one token [R] to every row."""
        self._positions = self._positions + 1
        body = self.model.model
        hidden = body.embed_tokens(tokens)  # [R, hidden]
        cos, sin = body.rotary_emb(hidden[:, None], self._positions[:, None])
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        for layer, states in zip(body.layers, self._layers, strict=True):
            normed = _norm(hidden, layer.input_layernorm)
            hidden = hidden + self._attend(layer.self_attn, states, normed, cos, sin)
            hidden = hidden + layer.mlp(_norm(hidden, layer.post_attention_layernorm))
        self.logits = self.model.lm_head(_norm(hidden, body.norm))

    def _attend(self, attention: Any, states: "_KeysValues", x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Self-attention of one new token per row, x [R, hidden], to its prompt and its own completion."""
        rows, size = len(x), attention.head_dim
        queries_keys = torch.cat((attention.q_proj(x), attention.k_proj(x)), dim=-1).view(rows, -1, size)
        # Rotary embedding: the halves of a head are turned against each other; sin has the sign of the turn.
        queries_keys = torch.addcmul(queries_keys * cos, queries_keys.roll(size // 2, dims=-1), sin)
        n = attention.num_key_value_groups
        key_heads = queries_keys.shape[1] // (n + 1)
        queries = (queries_keys[:, : n * key_heads] * attention.scaling).reshape(-1, n, size)  # [R * K, n, D]
        states.append(queries_keys[:, n * key_heads :], attention.v_proj(x).view(rows, key_heads, size))

        prompt_scores = torch.baddbmm(
            self._mask, self._arrangement.to_prompts(queries, key_heads), states.prompt_keys
        )
        scores = torch.cat(
            (self._arrangement.to_rows(prompt_scores, key_heads), torch.bmm(queries, states.keys)), dim=-1
        )
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)  # [R * K, n, L + t]
        length = states.prompt_values.shape[1]
        prompt_weights = self._arrangement.to_prompts(weights[..., :length], key_heads)
        output = self._arrangement.to_rows(torch.bmm(prompt_weights, states.prompt_values), key_heads)
        output = torch.baddbmm(output, weights[..., length:], states.values)
        projected: Tensor = attention.o_proj(output.view(rows, -1))
        return projected


def _norm(x: Tensor, norm: Any) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


class _Arrangement:
    """Where rows sit in a [P, S] arrangement by prompt, with some row repeated in the places left over."""

    def __init__(self, prompt_of_row: Tensor, n_prompts: int) -> None:
        self.n_prompts = n_prompts
        counts = torch.bincount(prompt_of_row, minlength=n_prompts)
        first = counts.cumsum(0) - counts
        self.size = int(counts.max())
        places = torch.arange(self.size, device=counts.device)
        numbers = torch.arange(len(prompt_of_row), device=counts.device)
        self._dense = n_prompts * self.size == len(prompt_of_row)
        self._row_of_place = (first[:, None] + places).clamp_(max=len(prompt_of_row) - 1).flatten()  # [P * S]
        self._place_of_row = prompt_of_row * self.size + numbers - first[prompt_of_row]  # [R]

    def to_prompts(self, states: Tensor, heads: int) -> Tensor:
        """[R * K, n, d] of rows to [P * K, S * n, d] of prompts."""
        states = states.unflatten(0, (-1, heads))
        if not self._dense:
            states = states[self._row_of_place]
        states = states.unflatten(0, (self.n_prompts, self.size))
        return states.transpose(1, 2).reshape(self.n_prompts * heads, -1, states.shape[-1])

    def to_rows(self, states: Tensor, heads: int) -> Tensor:
        """The inverse: [P * K, S * n, d] of prompts to [R * K, n, d] of rows."""
        d = states.shape[-1]
        states = states.view(self.n_prompts, heads, self.size, -1, d).transpose(1, 2)
        states = states.reshape(self.n_prompts * self.size, heads, -1, d)
        if not self._dense:
            states = states[self._place_of_row]
        return states.flatten(0, 1)


class _KeysValues:
    """Keys and values of one layer: the prompts' [P, K, L, D], and buffers for the rows."""

    def __init__(self, keys: Tensor, values: Tensor, rows: int, capacity: int) -> None:
        self.prompt_keys = keys.flatten(0, 1).transpose(1, 2).contiguous()  # [P * K, D, L]
        self.prompt_values = values.flatten(0, 1)  # [P * K, L, D]
        self._buffers = [
            states.new_empty(rows, states.shape[1], capacity, states.shape[3]) for states in (keys, values)
        ]
        self._length = 0

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add one position: [R, K, D] each."""
        for buffer, states in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, self._length] = states
        self._length += 1

    @property
    def keys(self) -> Tensor:
        """[R * K, D, t]."""
        return self._buffers[0].flatten(0, 1)[:, : self._length].transpose(1, 2)

    @property
    def values(self) -> Tensor:
        """[R * K, t, D]."""
        return self._buffers[1].flatten(0, 1)[:, : self._length]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, at the front of the same buffers."""
        for i, buffer in enumerate(self._buffers):
            buffer[: len(rows), :, : self._length] = buffer[rows, :, : self._length]
            self._buffers[i] = buffer[: len(rows)]
