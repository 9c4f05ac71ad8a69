"""Pack a microbatch into one unpadded token sequence in which each group's prompt occurs once.

Used by `trainer.cpu.attention`. All tensors are on the CPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


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
        """Yield (query block, keys up to its last query) slices."""
        for start in range(0, self.width, size):
            stop = min(start + size, self.width)
            yield slice(start, stop), slice(self.prefix_length + stop)

    def unpad(self, states: Tensor) -> Tensor:
        """Remove the padding: [B, T, ...] to [tokens, ...]."""
        flat = states.flatten(0, 1)
        return flat if self.place is None else flat.index_select(0, self.place)

    def padding(self) -> Tensor | None:
        """Return the padding mask of `pad`, [B, T] bool, or None without padding."""
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
    prompts = input_ids.masked_fill(columns >= prompt_lengths[:, None], -1)
    starts_group = torch.ones(len(input_ids), dtype=torch.bool)
    starts_group[1:] = (prompts[1:] != prompts[:-1]).any(dim=1)
    group_of_row = starts_group.cumsum(0) - 1
    own_lengths = prompt_lengths[starts_group]  # lengths of the distinct prompts
    prompt_ends = own_lengths.cumsum(0)

    # A completion is packed up to its last requested token.
    lengths = (completion_mask.bool() * torch.arange(1, completion_mask.shape[1] + 1)).amax(dim=1)
    seen = (lengths - 1).clamp_min(0)
    is_seen = (columns >= prompt_lengths[:, None]) & (columns < (prompt_lengths + seen)[:, None])
    completion_starts = int(prompt_ends[-1]) + seen.cumsum(0) - seen
    predicting = completion_starts[:, None] - 1 + torch.arange(completion_mask.shape[1])
    predicting[:, 0] = prompt_ends[group_of_row] - 1

    is_prompt = columns < own_lengths[:, None]
    return Packing(
        torch.cat([input_ids[starts_group][is_prompt], input_ids[is_seen]]),
        torch.cat([columns.expand_as(is_prompt)[is_prompt], columns.expand_as(is_seen)[is_seen]]),
        tuple(_segments(own_lengths, seen.split(group_of_row.bincount().tolist()))),
        predicting[completion_mask.bool()],
    )


def _segments(prompt_lengths: Tensor, completion_lengths: tuple[Tensor, ...]) -> Iterator[Segment]:
    yield Segment.of_lengths(0, prompt_lengths, slice(0, 0))
    end = int(prompt_lengths.sum())
    prompt_end = 0
    for prompt_length, lengths in zip(prompt_lengths.tolist(), completion_lengths, strict=True):
        prompt_start = prompt_end
        prompt_end = prompt_end + prompt_length
        if int(lengths.max()) > 0:
            yield Segment.of_lengths(end, lengths, slice(prompt_start, prompt_end))
            end += int(lengths.sum())
