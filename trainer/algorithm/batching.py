"""From rollout groups to tensors, update batches and microbatches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.policy.logprobs import TokenScores
from trainer.policy.row_cost import RowCost
from trainer.types import RolloutGroup, TrainBatch

TOKENS = RowCost()


def build_batch(groups: Sequence[RolloutGroup], pad_token_id: int, device: torch.device) -> TrainBatch:
    """The completions of some groups as tensors; what models say of them is still 0, or None for the reference."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    sequences = [torch.tensor([*r.prompt_ids, *r.completion.token_ids]) for r in rollouts]
    logprobs = [torch.tensor(r.completion.rollout_logprobs, dtype=torch.float32) for r in rollouts]
    lengths = torch.tensor([len(r.completion.token_ids) for r in rollouts])
    pad = torch.nn.utils.rnn.pad_sequence
    mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).float()
    batch = TrainBatch(
        input_ids=pad(sequences, batch_first=True, padding_value=pad_token_id),
        prompt_lengths=torch.tensor([len(r.prompt_ids) for r in rollouts]),
        completion_mask=mask,
        rollout_logprobs=pad(logprobs, batch_first=True),
        old_logprobs=torch.zeros_like(mask),
        ref_logprobs=None,
        entropies=torch.zeros_like(mask),
        gradient_norms=torch.zeros_like(mask),
        advantages=torch.zeros_like(mask),
        rewards=torch.tensor([r.reward for r in rollouts], dtype=torch.float32),
        group_ids=torch.tensor([r.group_id for r in rollouts]),
        truncated=torch.tensor([float(r.completion.finish_reason == "length") for r in rollouts]),
    )
    return _map_tensors(batch, lambda tensor: tensor.to(device))


def with_rewards(batch: TrainBatch, groups: Sequence[RolloutGroup]) -> TrainBatch:
    """The batch of some groups with their rewards, which were not known when it was built."""
    rewards = [rollout.reward for group in groups for rollout in group.rollouts]
    return replace(batch, rewards=torch.tensor(rewards, dtype=torch.float32).to(batch.rewards.device))


def select_rows(batch: TrainBatch, rows: Tensor) -> TrainBatch:
    """Some rows of a batch, cut to their own longest sequence and completion."""
    longest_completion = int(batch.completion_lengths[rows].max())
    longest = int((batch.prompt_lengths + batch.completion_lengths)[rows].max())
    chosen = _map_tensors(batch, lambda tensor: tensor[rows])
    return replace(
        _map_tensors(chosen, lambda tensor: tensor[:, :longest_completion] if tensor.dim() == 2 else tensor),
        input_ids=chosen.input_ids[:, :longest],
    )


class KeptForwards:
    """Forwards of an update batch with their graphs, from scoring to its optimizer step.

    As long as the weights do not move, the forwards that gave the old log-probabilities are those that the update
    would compute again.

    Args:
        max_tokens: rows x longest sequence, added over the microbatches whose graphs are kept.
    """

    def __init__(self, max_tokens: int) -> None:
        self._room = max_tokens
        self._scores: dict[int, TokenScores] = {}

    def has_room(self, tokens: int) -> bool:
        """Whether a microbatch of so many tokens may be kept."""
        return tokens <= self._room

    def keep(self, index: int, scores: TokenScores, tokens: int) -> None:
        """Keep the scores of a microbatch that were computed with gradient."""
        self._room -= tokens
        self._scores[index] = scores

    def take(self, index: int) -> TokenScores | None:
        """What was kept of a microbatch, once: its graph is freed with it."""
        return self._scores.pop(index, None)

    def discard(self) -> None:
        """Free what was not taken: the weights move."""
        self._scores.clear()


@dataclass(frozen=True)
class UpdateBatch:
    """The rows of one optimizer step, in microbatches.

    A microbatch without rows is one that other ranks have and this one does not: it takes part in the forward
    and the backward pass with another row and weight 0.
    """

    microbatches: Sequence[Tensor]  # row indices, [b] int64 each
    kept: KeptForwards = field(default_factory=lambda: KeptForwards(0))

    @property
    def rows(self) -> Tensor:
        """All rows of the update batch."""
        return torch.cat(list(self.microbatches))

    @property
    def stand_in(self) -> Tensor:
        """The row of a microbatch without rows, [1]: the last, which is the shortest where rows are sorted."""
        return self.rows[-1:]


def plan_update_batches(
    batch: TrainBatch,
    update_batch_size: int,
    tokens_per_microbatch: int,
    gather: Callable[[list[Any]], list[Any]] = lambda items: items,
    packed: bool = False,
    kept_tokens: int = 0,
    cost: RowCost = TOKENS,
) -> list[UpdateBatch]:
    """Cut the rows into update batches in order, and each into the cheapest microbatches under a token budget.

    The same plan serves old log-probabilities, reference and every pass: a row is always computed beside the
    same others, so that the importance ratio of the first update is exactly 1.

    Args:
        batch: B rows.
        update_batch_size: completions of one optimizer step on this rank.
        tokens_per_microbatch: most tokens that a microbatch computes; a single longer row stands alone.
        gather: the items of all ranks; every rank gets as many microbatches as the one with the most.
        packed: whether the model takes packed rows. Then groups stay together, as a prompt is computed once for
            its rows; else rows are sorted by length, and padding counts.
        kept_tokens: of the first update batch, the tokens whose forwards are kept from scoring to the update.
        cost: of padded rows.
    """
    groups, prompts, completions = (
        tensor.cpu() for tensor in (batch.group_ids, batch.prompt_lengths, batch.completion_lengths)
    )
    plan = []
    for rows in torch.arange(len(prompts)).split(update_batch_size):
        if packed:
            parts = _cut_packed(groups[rows], prompts[rows], completions[rows], tokens_per_microbatch)
        else:
            parts = _cut_by_length((prompts + completions)[rows], tokens_per_microbatch, cost)
        plan.append(UpdateBatch([rows[part].to(batch.input_ids.device) for part in parts]))
    padded = _padded(plan, gather([[len(update_batch.microbatches) for update_batch in plan]]))
    # Only of the first: its optimizer step moves the weights.
    return [replace(padded[0], kept=KeptForwards(kept_tokens)), *padded[1:]]


def _cut_by_length(lengths: Tensor, budget: int, cost: RowCost) -> list[Tensor]:
    """Longest rows first, cut where the whole costs least; rows x longest sequence within the budget.

    From the last row backwards: the cheapest way to cut the rows from each one on, given those from later ones on.
    """
    longest_first = lengths.argsort(descending=True, stable=True)
    longest = lengths[longest_first].tolist()
    count = len(longest)
    cheapest, sizes = np.zeros(count + 1), [0] * count
    for start in reversed(range(count)):
        most = min(max(1, budget // longest[start]), count - start)
        tried = np.arange(most, 0, -1)  # of equally cheap ones the largest
        costs = cost.microbatch + tried * cost.of_row(longest[start]) + cheapest[start + tried]
        best = int(costs.argmin())
        cheapest[start], sizes[start] = costs[best], int(tried[best])
    microbatches: list[Tensor] = []
    start = 0
    while start < count:
        microbatches.append(longest_first[start : start + sizes[start]])
        start += sizes[start]
    return microbatches


def _cut_packed(groups: Tensor, prompts: Tensor, completions: Tensor, budget: int) -> list[Tensor]:
    """Rows as they come, group by group; a microbatch's prompts, each once, and completions within the budget."""
    rows = zip(groups.tolist(), prompts.tolist(), completions.tolist(), strict=True)
    microbatches: list[list[int]] = [[]]
    tokens, last_group = 0, None
    for row, (group, prompt, completion) in enumerate(rows):
        added = completion if group == last_group else prompt + completion
        if microbatches[-1] and tokens + added > budget:
            microbatches.append([])
            tokens, added = 0, prompt + completion
        microbatches[-1].append(row)
        tokens, last_group = tokens + added, group
    return [torch.tensor(rows) for rows in microbatches]


def _padded(plan: Sequence[UpdateBatch], counts: Sequence[Sequence[int]]) -> list[UpdateBatch]:
    """The plan with as many microbatches per update batch as ``counts`` has at most over the ranks."""
    padded = []
    for update_batch, most in zip(plan, map(max, zip(*counts, strict=True)), strict=True):
        own = list(update_batch.microbatches)
        padded.append(UpdateBatch([*own, *[own[0][:0]] * (most - len(own))]))
    return padded


def _map_tensors(batch: TrainBatch, function) -> TrainBatch:  # type: ignore[no-untyped-def]
    changed = {
        field.name: function(getattr(batch, field.name))
        for field in fields(batch)
        if getattr(batch, field.name) is not None
    }
    return replace(batch, **changed)
