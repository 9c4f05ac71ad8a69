"""Causal self-attention over packed rows of float32 models on CPUs, in batched matrix products.

torch's fused CPU kernel supports neither shared prompts nor unpadded rows. It also repeats the keys
of grouped query heads and works on blocks of only 32 queries.

docs/explanation/benchmarks.md has the time of a step without packed rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_or_packed"
# longest sequence [positions] whose attention weights are kept for the backward pass; weights of
# longer ones are recomputed
MAX_STORED_LENGTH = 512
BLOCK = 64  # query block size; a block attends to all keys up to its last query


@dataclass(frozen=True)
class Segment:
    """Consecutive sequences in the packed tokens that share one prefix.

    The prompts form one segment without a prefix; the completions of each prompt form a segment
    whose prefix is the prompt.
    """

    tokens: slice  # position in the packed tokens
    prefix: slice  # packed tokens of the shared prefix
    count: int  # B sequences
    width: int  # T, length of the longest
    place: Tensor | None  # [tokens] index of each token in [B * T]; None if all lengths are equal
    # [B * T] token index of each padded position; padding points at token 0
    source: Tensor | None

    @classmethod
    def of_lengths(cls, start: int, lengths: Tensor, prefix: slice) -> "Segment":
        """Build a segment of sequences with ``lengths`` [B] that starts at packed token
        ``start``.
        """
        width = int(lengths.max())
        total = int(lengths.sum())
        tokens = slice(start, start + total)
        if total == width * len(lengths):
            return cls(tokens, prefix, len(lengths), width, None, None)
        place = (torch.arange(width) < lengths[:, None]).flatten().nonzero().squeeze(1)
        source = torch.zeros(width * len(lengths), dtype=torch.int64)
        source[place] = torch.arange(total)
        return cls(tokens, prefix, len(lengths), width, place, source)

    @property
    def prefix_length(self) -> int:
        """P, the prefix length in tokens."""
        length: int = self.prefix.stop - self.prefix.start
        return length

    def pad(self, states: Tensor) -> Tensor:
        """Select the segment's states from all packed tokens and pad: [N, ...] to [B, T, ...]."""
        rows = states[self.tokens]
        if self.source is not None:
            rows = rows.index_select(0, self.source)
        return rows.view(self.count, self.width, *states.shape[1:])

    def blocks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Yield a slice of at most ``size`` queries, and the slice of the keys up to its last
        query, prefix included.
        """
        for start in range(0, self.width, size):
            stop = min(start + size, self.width)
            yield slice(start, stop), slice(self.prefix_length + stop)

    def unpad(self, states: Tensor) -> Tensor:
        """Remove the padding: [B, T, ...] to [tokens, ...]."""
        flat = states.flatten(0, 1)
        return flat if self.place is None else flat.index_select(0, self.place)

    def padding(self) -> Tensor | None:
        """Return the padding mask of `pad`, [B, T] bool, True at padding; None without padding."""
        if self.place is None:
            return None
        padding = torch.ones(self.count * self.width, dtype=torch.bool)
        padding[self.place] = False
        return padding.view(self.count, self.width)


@dataclass(frozen=True)
class Packing:
    """The packed input tokens needed to predict the completion tokens of some rows."""

    # [N] prompts, then completions up to the token before the last requested one
    input_ids: Tensor
    position_ids: Tensor  # [N] position of the token in its row
    segments: tuple[Segment, ...]  # the prompts, then the completions of each prompt
    predicting: Tensor  # [M] packed token before each completion token, in row-major order


def pack(input_ids: Tensor, prompt_lengths: Tensor, completion_mask: Tensor) -> Packing:
    """Pack rows. Consecutive rows with the same prompt share one copy of it.

    Args:
        input_ids: [b, L], rows of prompt, completion, padding.
        prompt_lengths: [b].
        completion_mask: [b, T], mask of the completion tokens to predict.
    """
    columns = torch.arange(input_ids.shape[1])
    # Rows of a group are adjacent. A row starts a group if its prompt differs from the prompt of
    # the row before. No token has the id -1, so a prompt differs from a longer one that starts with
    # it.
    prompts = input_ids.masked_fill(columns >= prompt_lengths[:, None], -1)
    starts_group = torch.ones(len(input_ids), dtype=torch.bool)
    starts_group[1:] = (prompts[1:] != prompts[:-1]).any(dim=1)
    group_of_row = starts_group.cumsum(0) - 1
    own_lengths = prompt_lengths[starts_group]  # lengths of the distinct prompts
    prompt_ends = own_lengths.cumsum(0)

    # The last requested token of a completion predicts no requested token, so it is not packed.
    lengths = (completion_mask.bool() * torch.arange(1, completion_mask.shape[1] + 1)).amax(dim=1)
    seen = (lengths - 1).clamp_min(0)
    is_processed = (columns >= prompt_lengths[:, None]) & (
        columns < (prompt_lengths + seen)[:, None]
    )
    completion_starts = int(prompt_ends[-1]) + seen.cumsum(0) - seen
    # Each completion token is predicted by the token before it. Before the first completion token
    # comes the last token of the shared prompt, which need not be next to it in the packed tokens.
    predicting = completion_starts[:, None] - 1 + torch.arange(completion_mask.shape[1])
    predicting[:, 0] = prompt_ends[group_of_row] - 1

    is_prompt = columns < own_lengths[:, None]
    return Packing(
        torch.cat([input_ids[starts_group][is_prompt], input_ids[is_processed]]),
        torch.cat(
            [columns.expand_as(is_prompt)[is_prompt], columns.expand_as(is_processed)[is_processed]]
        ),
        tuple(_segments(own_lengths, seen.split(group_of_row.bincount().tolist()))),
        predicting[completion_mask.bool()],
    )


def _segments(prompt_lengths: Tensor, completion_lengths: tuple[Tensor, ...]) -> Iterator[Segment]:
    """Yield the segment of all prompts, then a segment of each prompt's completions.

    Args:
        prompt_lengths: lengths of the distinct prompts, [P].
        completion_lengths: for each prompt, the packed lengths of its completions, [rows].
    """
    yield Segment.of_lengths(0, prompt_lengths, prefix=slice(0, 0))
    prompt_start = 0
    completion_start = int(prompt_lengths.sum())  # completions are packed after all prompts
    for prompt_length, lengths in zip(prompt_lengths.tolist(), completion_lengths, strict=True):
        prompt = slice(prompt_start, prompt_start + prompt_length)
        prompt_start = prompt.stop
        # The prompt's last token predicts the first token of a completion, so completions of one
        # token have no packed tokens.
        if int(lengths.max()) > 0:
            yield Segment.of_lengths(completion_start, lengths, prefix=prompt)
            completion_start += int(lengths.sum())


def use_packed_attention(model: PreTrainedModel) -> None:
    """Enable packed rows for a model that uses SDPA, if they give the same hidden states as padded
    rows.

    A model that ignores the packing or the positions, or whose layers mix rows in some other
    way, keeps padded rows. So do models with sharded parameters (ZeRO stage 3) and models with an
    attention window, because the rows of the comparison are shorter than the window.
    """
    is_sharded = model.get_input_embeddings().weight.dim() != 2
    has_window = any(DynamicCache(config=model.config).is_sliding)
    if is_sharded or has_window or model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, _attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    if not _matches_padded_rows(model):
        model.set_attn_implementation("sdpa")


def takes_packed_rows(model: PreTrainedModel) -> bool:
    """Return whether the model supports `packed_hidden_states`."""
    return bool(model.config._attn_implementation == NAME)


@torch.no_grad()
def _matches_padded_rows(model: PreTrainedModel) -> bool:
    """Return whether packed and padded rows have the same hidden states on three short rows, two of
    them with the same prompt.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = (torch.arange(3 * 7).view(3, 7) * 7 + 1) % vocabulary
    ids[1, :4] = ids[0, :4]
    prompt_lengths = torch.tensor([4, 4, 3])
    completion_mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    try:
        packed = packed_hidden_states(model, pack(ids, prompt_lengths, completion_mask))
    except Exception:  # the model's own code may not accept these arguments or shapes
        return False
    rows, columns = completion_mask.nonzero(as_tuple=True)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    padded = hidden[rows, prompt_lengths[rows] + columns - 1]
    return packed.shape == padded.shape and torch.allclose(packed, padded, rtol=1e-3, atol=1e-3)


def packed_hidden_states(model: PreTrainedModel, packing: Packing) -> Tensor:
    """Return the last hidden state at the position before each completion token, [M, hidden
    size].
    """
    hidden: Tensor = model.base_model(
        input_ids=packing.input_ids[None],
        position_ids=packing.position_ids[None],
        # With a 4-D mask transformers does not build its own. A layer that ignores `packing`
        # attends to all tokens.
        attention_mask=torch.zeros(1, 1, 1, 1),
        use_cache=False,
        packing=packing,
    ).last_hidden_state
    return hidden[0].index_select(0, packing.predicting)


def _attention_forward(  # noqa: PLR0913  signature of transformers
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention for transformers: `packed_attention` if ``packing`` is given, else SDPA."""
    if packing is None:
        output: Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )[0]
        return output, None
    query, key, value = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
    return packed_attention(query, key, value, scaling or query.shape[-1] ** -0.5, packing)[
        None
    ], None


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, packing: Packing
) -> Tensor:
    """Compute causal attention ``softmax(scale query key^T) value`` within each row of the packed
    tokens.

    Args:
        query: [N, H, D].
        key: [N, K, D], each head shared by ``H / K`` adjacent query heads.
        value: [N, K, D].
        scale: softmax scale.
        packing: row structure of the N tokens.

    Returns:
        [N, H, D].
    """
    output: Tensor = _PackedAttention.apply(query, key, value, scale, packing)  # type: ignore[no-untyped-call]
    return output


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, packing: Packing
    ) -> Tensor:
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        kept: list[Tensor] = []
        for segment in packing.segments:
            padded = query.new_empty(segment.count, segment.width, *query.shape[1:])
            queries, keys, values = _states(segment, query, key, value, scale)
            outputs = _by_key_head(padded, key.shape[1])
            for block, past in segment.blocks(BLOCK):
                weights = _weights(queries, keys, block, past)
                outputs[..., block, :] = torch.bmm(weights, values[:, past]).view_as(
                    outputs[..., block, :]
                )
                if any(ctx.needs_input_grad) and _stores_weights(segment):
                    kept.append(weights)
            output[segment.tokens] = segment.unpad(padded)
        ctx.save_for_backward(query, key, value, *kept)
        ctx.scale = scale
        ctx.packing = packing
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, *rest = ctx.saved_tensors
        kept = iter(rest)
        key_heads = key.shape[1]
        grad_query = torch.empty_like(grad_output)
        grad_key = torch.empty_like(key)
        grad_value = torch.empty_like(value)
        # The prompts' segment comes first: it sets the gradients of the prompts' keys and values,
        # to which the segments of completions add.
        for segment in ctx.packing.segments:
            queries, keys, values = _states(segment, query, key, value, ctx.scale)
            padded = segment.pad(grad_output)
            padding = segment.padding()
            if padding is not None:  # `pad` fills the padding with copies of token 0
                padded[padding] = 0.0
            grad_outputs = _by_key_head(padded, key_heads)
            grad_padded = torch.empty_like(padded)
            grad_queries = _by_key_head(grad_padded, key_heads)
            grad_keys = torch.zeros_like(keys)
            grad_values = torch.zeros_like(values)
            for block, past in segment.blocks(BLOCK):
                weights = (
                    next(kept) if _stores_weights(segment) else _weights(queries, keys, block, past)
                )
                grad_rows = _rows(grad_outputs, block)
                grad_values[:, past] += torch.bmm(weights.transpose(1, 2), grad_rows)
                grad_weights = torch.bmm(grad_rows, values[:, past].transpose(1, 2))
                grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
                grad_keys[:, past] += torch.bmm(grad_scores.transpose(1, 2), _rows(queries, block))
                rows = torch.bmm(grad_scores, keys[:, past]).mul_(ctx.scale)
                grad_queries[..., block, :] = rows.view_as(grad_queries[..., block, :])
            grad_query[segment.tokens] = segment.unpad(grad_padded)
            _add_past(segment, grad_keys, grad_key)
            _add_past(segment, grad_values, grad_value)
        return grad_query, grad_key, grad_value, None, None


def _states(
    segment: Segment, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a segment's scaled queries [B, K, n, T, D], and its keys and values with the prefix [B
    * K, P + T, D].
    """
    queries = _by_key_head(segment.pad(query), key.shape[1]) * scale
    return queries, _past(segment, key), _past(segment, value)


def _past(segment: Segment, states: Tensor) -> Tensor:
    """Gather prefix and own states for each sequence: [N, K, D] to [B * K, P + T, D]."""
    prefix = states[segment.prefix].transpose(0, 1)
    _, heads, size = states.shape
    past = states.new_empty(segment.count, heads, segment.prefix_length + segment.width, size)
    past[:, :, : segment.prefix_length] = prefix
    past[:, :, segment.prefix_length :] = segment.pad(states).transpose(1, 2)
    return past.flatten(0, 1)


def _add_past(segment: Segment, grad_past: Tensor, grad_states: Tensor) -> None:
    """Compute the backward pass of `_past`: scatter the gradients, and sum the prefix gradients
    over all sequences.
    """
    by_sequence = grad_past.view(segment.count, grad_states.shape[1], -1, grad_states.shape[2])
    of_prefix, of_completion = by_sequence.split((segment.prefix_length, segment.width), dim=2)
    grad_states[segment.prefix] += of_prefix.sum(dim=0).transpose(0, 1)
    grad_states[segment.tokens] = segment.unpad(of_completion.transpose(1, 2))


def _stores_weights(segment: Segment) -> bool:
    return segment.prefix_length + segment.width <= MAX_STORED_LENGTH


def _weights(queries: Tensor, keys: Tensor, block: slice, past: slice) -> Tensor:
    """Return the attention weights of a block. The n = H / K query heads of a key head share one
    matrix product.

    Shapes: [B * K, n * a, D] times [B * K, D, k] is [B * K, n * a, k], with ``a`` queries in the
    block and ``k`` keys up to its last query.
    """
    scores = torch.bmm(_rows(queries, block), keys[:, past].transpose(1, 2))
    # Only the block's own keys need a causal mask, the same in all sequences.
    width = block.stop - block.start
    future = scores.new_full((width, width), -torch.inf).triu_(1)
    scores.view(len(keys), -1, width, past.stop)[..., past.stop - width :].add_(future)
    return torch.softmax(scores, dim=-1)


def _by_key_head(states: Tensor, key_heads: int) -> Tensor:
    """Return [B, T, H, D] as a view by key heads: [B, K, n, T, D]."""
    batch, length, heads, size = states.shape
    return states.view(batch, length, key_heads, heads // key_heads, size).permute(0, 2, 3, 1, 4)


def _rows(states: Tensor, block: slice) -> Tensor:
    """Slice a block of positions and flatten: [B, K, n, T, D] to [B * K, n * t, D]."""
    return states[..., block, :].flatten(2, 3).flatten(0, 1)
