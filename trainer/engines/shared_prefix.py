"""A lean decoding step for Llama and Qwen2 models.

Completions of one prompt share its keys and values, which exist once per prompt, and append their own in place to
preallocated buffers; attention is one softmax over two products. The step computes with the layers' own weights
but without their modules: what a forward pass of transformers does around the arithmetic for every token (masks,
cache objects, hooks) costs more than the arithmetic of a small model.

Letters: P prompts, L tokens of the longest one, R rows (completions), S rows of the prompt that has most, H query
heads, K key heads, n = H / K, D head size, t tokens completed. Heads come before rows, [K, R, ...], so that the
rows of a prompt are adjacent and [K * R, n, D] is [K * P, S * n, D] without copying while no row is missing.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from trainer.engines.decoding import Prefill

FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM)
_VARYING_ROPE = ("dynamic", "longrope")  # angles depend on the longest sequence so far


def is_supported(model: PreTrainedModel) -> bool:
    """Whether the step below is this model's: a known family, full attention, plain linear layers."""
    config = model.config
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    return (
        type(model) in FAMILIES
        and set(layer_types) == {"full_attention"}
        and config.rope_parameters["rope_type"] not in _VARYING_ROPE
        and all(type(module) is nn.Linear for name, module in model.named_modules() if name.endswith("_proj"))
    )


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
        self._prompt_of_row = prompt_of_row
        self._arrangement = _Arrangement(prompt_of_row, len(prefill.mask))
        self._layers = [
            _KeysValues(layer.keys, layer.values, len(prompt_of_row), max_new_tokens)
            for layer in prefill.cache.layers
        ]
        mask = torch.zeros(prefill.mask.shape, dtype=model.dtype, device=prefill.mask.device)
        mask = mask.masked_fill_(~prefill.mask, -torch.inf)[:, None]
        self._mask = mask.repeat(prefill.cache.layers[0].keys.shape[1], 1, 1)  # [K * P, 1, L]
        self._positions = prefill.positions[prompt_of_row]
        every_position = torch.arange(prefill.mask.shape[1] + max_new_tokens, device=mask.device)
        cos, sin = model.model.rotary_emb(mask, every_position[None])
        half = sin.shape[-1] // 2
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)  # [positions, D]

    def select(self, rows: Tensor) -> None:
        """Keep these rows only (ascending indices)."""
        for layer in self._layers:
            layer.select(rows)
        self._positions, self._prompt_of_row = self._positions[rows], self._prompt_of_row[rows]
        self._arrangement = _Arrangement(self._prompt_of_row, self._arrangement.n_prompts)

    def step(self, tokens: Tensor) -> None:
        """Append one token [R] to every row."""
        self._positions = self._positions + 1
        rotation = self._cos[self._positions, None], self._sin[self._positions, None]  # [R, 1, D]
        body: Any = self.model.model
        hidden = nn.functional.embedding(tokens, body.embed_tokens.weight)  # [R, hidden]
        for layer, states in zip(body.layers, self._layers, strict=True):
            hidden = hidden + self._attend(layer.self_attn, states, _norm(hidden, layer.input_layernorm), rotation)
            x, mlp = _norm(hidden, layer.post_attention_layernorm), layer.mlp
            hidden = hidden + _linear(
                mlp.act_fn(_linear(x, mlp.gate_proj)) * _linear(x, mlp.up_proj), mlp.down_proj
            )
        self.logits = self.model.lm_head(_norm(hidden, body.norm))

    def _attend(self, attention: Any, states: "_KeysValues", x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Self-attention of one new token per row, x [R, hidden], to its prompt and its own completion."""
        rows, size, n = len(x), attention.head_dim, attention.num_key_value_groups
        states_of_heads = torch.cat((_linear(x, attention.q_proj), _linear(x, attention.k_proj)), dim=-1)
        states_of_heads = states_of_heads.view(rows, -1, size)
        # Rotary embedding: the halves of a head are turned against each other; the sines carry the sign.
        cos, sin = rotation
        rotated = torch.addcmul(states_of_heads * cos, states_of_heads.roll(size // 2, dims=-1), sin)
        key_heads = rotated.shape[1] // (n + 1)
        values = _linear(x, attention.v_proj).view(rows, key_heads, size)
        states.append(rotated[:, n * key_heads :].transpose(0, 1), values.transpose(0, 1))

        queries = rotated[:, : n * key_heads].view(rows, key_heads, n, size).transpose(0, 1) * attention.scaling
        arrangement = self._arrangement
        prompt_scores = torch.baddbmm(self._mask, arrangement.to_prompts(queries), states.prompt_keys)
        scores = torch.cat(
            (
                arrangement.to_rows(prompt_scores, key_heads),
                torch.bmm(queries.reshape(-1, n, size), states.keys).view(key_heads, rows, n, -1),
            ),
            dim=-1,
        )
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)  # [K, R, n, L + t]
        length = states.prompt_values.shape[1]
        prompt_output = torch.bmm(arrangement.to_prompts(weights[..., :length]), states.prompt_values)
        output = torch.baddbmm(
            arrangement.to_rows(prompt_output, key_heads).flatten(0, 1),
            weights[..., length:].flatten(0, 1),
            states.values,
        )
        return _linear(output.view(key_heads, rows, -1).transpose(0, 1).reshape(rows, -1), attention.o_proj)


def _linear(x: Tensor, linear: Any) -> Tensor:
    return nn.functional.linear(x, linear.weight, linear.bias)


def _norm(x: Tensor, norm: Any) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


class _Arrangement:
    """Where rows sit in a [P, S] arrangement by prompt, with some row repeated in the places left over."""

    def __init__(self, prompt_of_row: Tensor, n_prompts: int) -> None:
        self.n_prompts = n_prompts
        counts = torch.bincount(prompt_of_row, minlength=n_prompts)
        first = counts.cumsum(0) - counts
        size = int(counts.max())
        places = torch.arange(size, device=counts.device)
        numbers = torch.arange(len(prompt_of_row), device=counts.device)
        self._dense = n_prompts * size == len(prompt_of_row)
        self._row_of_place = (first[:, None] + places).clamp_(max=len(prompt_of_row) - 1).flatten()  # [P * S]
        self._place_of_row = prompt_of_row * size + numbers - first[prompt_of_row]  # [R]

    def to_prompts(self, states: Tensor) -> Tensor:
        """[K, R, n, d] of rows to [K * P, S * n, d] of prompts."""
        heads, _, _, d = states.shape
        if not self._dense:
            states = states.index_select(1, self._row_of_place)
        return states.reshape(heads * self.n_prompts, -1, d)

    def to_rows(self, states: Tensor, heads: int) -> Tensor:
        """The inverse: [K * P, S * n, d] of prompts to [K, R, n, d] of rows."""
        states = states.view(heads, len(self._row_of_place), -1, states.shape[-1])
        return states if self._dense else states.index_select(1, self._place_of_row)


class _KeysValues:
    """Keys and values of one layer: the prompts' (given as [P, K, L, D]), and buffers for the rows."""

    def __init__(self, keys: Tensor, values: Tensor, rows: int, capacity: int) -> None:
        self.prompt_keys = keys.permute(1, 0, 3, 2).flatten(0, 1).contiguous()  # [K * P, D, L]
        self.prompt_values = values.transpose(0, 1).flatten(0, 1)  # [K * P, L, D]
        self._buffers = [
            states.new_empty(states.shape[1], rows, capacity, states.shape[3]) for states in (keys, values)
        ]
        self._length = 0

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add one position: [K, R, D] each."""
        self._buffers[0][:, :, self._length] = keys
        self._buffers[1][:, :, self._length] = values
        self._length += 1

    @property
    def keys(self) -> Tensor:
        """[K * R, D, t]."""
        return self._buffers[0].flatten(0, 1)[:, : self._length].transpose(1, 2)

    @property
    def values(self) -> Tensor:
        """[K * R, t, D]."""
        return self._buffers[1].flatten(0, 1)[:, : self._length]

    def select(self, rows: Tensor) -> None:
        """Move these rows into smaller buffers."""
        for i, buffer in enumerate(self._buffers):
            kept = buffer.new_empty(len(buffer), len(rows), *buffer.shape[2:])
            kept[:, :, : self._length] = buffer[:, rows, : self._length]
            self._buffers[i] = kept
