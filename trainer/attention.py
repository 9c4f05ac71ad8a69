"""Causal self-attention of float32 models on CPUs, in batched matrix products.

torch's fused kernel for CPUs repeats the keys of grouped query heads and multiplies pieces of 32 queries; for the
sequences of small models, products over all heads at once take half to two thirds of its time. What it saves, the
memory of the attention weights, is little while sequences are short: longer ones are left to it.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_or_batched"
LONGEST = 512  # positions: the weights kept for the backward pass grow with the square
BLOCK = 64  # queries that are multiplied with all keys up to the last of them


def use_batched_attention(model: PreTrainedModel) -> None:
    """Let a model with torch's attention compute with `causal_attention` wherever it can."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attention_forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: `causal_attention` for what it is made for, else sdpa."""
    length = query.shape[2]
    plain = (
        not torch.is_autocast_enabled("cpu")
        and query.device.type == "cpu"
        and query.dtype == key.dtype == value.dtype == torch.float32
        and 1 < length == key.shape[2] <= LONGEST
        and key.shape == value.shape
        and attention_mask is None
        and dropout == 0
        and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
        and all(options.get(name) is None for name in ("position_bias", "cache"))
    )
    if plain:
        return causal_attention(query, key, value, scaling or query.shape[-1] ** -0.5), None
    output: Tensor = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout, scaling, is_causal, **options
    )[0]
    return output, None


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """``softmax(scale query key^T) value`` over each position's past and itself.

    Args:
        query: [B, H, T, D].
        key: [B, K, T, D], each head shared by ``H / K`` adjacent query heads.
        value: [B, K, T, D].
        scale: factor of the scores.

    Returns:
        [B, T, H, D].
    """
    output: Tensor = _CausalAttention.apply(query, key, value, scale)  # type: ignore[no-untyped-call]
    return output


class _CausalAttention(torch.autograd.Function):
    """n = H / K query heads of a key head are rows of one product: [B * K, n * t, D] with [B * K, D, T]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        batch, heads, length, size = query.shape
        queries = _grouped(query, key.shape[1]) * scale
        keys, values = key.reshape(-1, length, size), value.reshape(-1, length, size)
        output = query.new_empty(batch, length, heads, size)
        outputs = _grouped(output.transpose(1, 2), key.shape[1])
        future = query.new_full((BLOCK, BLOCK), -torch.inf).triu_(1)
        all_weights = []
        for block in _blocks(length):
            past, width = slice(block.stop), block.stop - block.start
            scores = torch.bmm(_rows(queries, block), keys[:, past].transpose(1, 2))
            scores.view(len(keys), -1, width, block.stop)[..., block].add_(future[:width, :width])
            weights = torch.softmax(scores, dim=-1)
            outputs[..., block, :] = torch.bmm(weights, values[:, past]).view_as(outputs[..., block, :])
            all_weights.append(weights)
        ctx.save_for_backward(queries, keys, values, *all_weights)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        queries, keys, values, *all_weights = ctx.saved_tensors
        batch, length, _, size = grad_output.shape
        key_heads = len(keys) // batch
        grad_outputs = _grouped(grad_output.transpose(1, 2), key_heads)
        grad_query = torch.empty_like(grad_output).transpose(1, 2)
        grad_queries = _grouped(grad_query, key_heads)
        grad_keys, grad_values = torch.zeros_like(keys), torch.zeros_like(values)
        for block, weights in zip(_blocks(length), all_weights, strict=True):
            past = slice(block.stop)
            grad_rows = _rows(grad_outputs, block)
            grad_values[:, past] += torch.bmm(weights.transpose(1, 2), grad_rows)
            grad_weights = torch.bmm(grad_rows, values[:, past].transpose(1, 2))
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_keys[:, past] += torch.bmm(grad_scores.transpose(1, 2), _rows(queries, block))
            rows = torch.bmm(grad_scores, keys[:, past]).mul_(ctx.scale)
            grad_queries[..., block, :] = rows.view_as(grad_queries[..., block, :])
        shape = batch, key_heads, length, size
        return grad_query, grad_keys.view(shape), grad_values.view(shape), None


def _blocks(length: int) -> Iterator[slice]:
    for start in range(0, length, BLOCK):
        yield slice(start, min(start + BLOCK, length))


def _grouped(states: Tensor, key_heads: int) -> Tensor:
    """[B, H, T, D] by key heads: [B, K, n, T, D], a view."""
    batch, heads, length, size = states.shape
    return states.view(batch, key_heads, heads // key_heads, length, size)


def _rows(states: Tensor, block: slice) -> Tensor:
    """The positions of a block, [B, K, n, T, D] to [B * K, n * t, D]."""
    return states[..., block, :].flatten(2, 3).flatten(0, 1)
