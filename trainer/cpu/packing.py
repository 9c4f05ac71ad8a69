"""Rows of one microbatch as one sequence of tokens: each prompt once for its group, and no padding.

`trainer.cpu.attention` computes it. Tensors are those of the CPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """Sequences that follow one prefix and lie one after the other in the packed tokens.

    The prompts of a microbatch are a segment without prefix; the completions of a prompt are one
    after it.
    """

    tokens: slice  # where they are
    prefix: slice  # the tokens before each of them
    count: int  # B sequences
    width: int  # T, length of the longest
    place: Tensor | None  # [tokens] of each token in [B * T]; None where all are of one length
    # [B * T] of each place in the tokens; padding points at the first of them
    source: Tensor | None

    @classmethod
    def of_lengths(cls, start: int, lengths: Tensor, prefix: slice) -> "Segment":
        """Build the sequences of given ``lengths`` [B] from the packed token ``start`` on."""
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
        """P, tokens before each sequence."""
        length: int = self.prefix.stop - self.prefix.start
        return length

    def pad(self, states: Tensor) -> Tensor:
        """Return states of all packed tokens, [N, ...], as those of the segment's sequences, [B, T,
        ...].
        """
        rows = states[self.tokens]
        if self.source is not None:
            rows = rows.index_select(0, self.source)
        return rows.view(self.count, self.width, *states.shape[1:])

    def blocks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of queries of each sequence, and all keys up to that of the last of them."""
        for start in range(0, self.width, size):
            stop = min(start + size, self.width)
            yield slice(start, stop), slice(self.prefix_length + stop)

    def unpad(self, states: Tensor) -> Tensor:
        """Return states of the segment's sequences, [B, T, ...], without those of padding: [tokens,
        ...].
        """
        flat = states.flatten(0, 1)
        return flat if self.place is None else flat.index_select(0, self.place)

    def padding(self) -> Tensor | None:
        """Return where `pad` put padding, [B, T] bool; None where it put none."""
        if self.place is None:
            return None
        padding = torch.ones(self.count * self.width, dtype=torch.bool)
        padding[self.place] = False
        return padding.view(self.count, self.width)


@dataclass(frozen=True)
class Packing:
    """The tokens of some rows that a model has to see to predict the completions, and where they
    went.
    """

    # [N] prompts, then completions up to the token before the last that is asked for
    input_ids: Tensor
    position_ids: Tensor  # [N] of the token in its row
    segments: tuple[Segment, ...]  # the prompts, then the completions of each prompt
    predicting: Tensor  # [M] packed token before each completion token, in row-major order


def pack(input_ids: Tensor, prompt_lengths: Tensor, completion_mask: Tensor) -> Packing:
    """Pack rows; those that follow a row with the same prompt share its prompt.

    Args:
        input_ids: [b, L], rows of prompt, completion, padding.
        prompt_lengths: [b].
        completion_mask: [b, T], the completion tokens that are asked for.
    """
    columns = torch.arange(input_ids.shape[1])
    prompts = input_ids.masked_fill(columns >= prompt_lengths[:, None], -1)
    starts_group = torch.ones(len(input_ids), dtype=torch.bool)
    starts_group[1:] = (prompts[1:] != prompts[:-1]).any(dim=1)
    group_of_row = starts_group.cumsum(0) - 1
    own_lengths = prompt_lengths[starts_group]  # of the prompts that are kept
    prompt_ends = own_lengths.cumsum(0)

    # The last column that is asked for decides how much of a completion is seen, whichever others
    # are.
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
