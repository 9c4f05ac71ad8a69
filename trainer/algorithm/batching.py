"""From rollout groups to tensors, update batches and microbatches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from rewards import part_weight
from trainer.types import Rollout, RolloutGroup, TrainBatch


def build_batch(groups: Sequence[RolloutGroup], pad_token_id: int, device: torch.device) -> TrainBatch:
    """The completions of some groups as tensors; model outputs are zero until scoring."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    sequences = [torch.tensor([*r.prompt_ids, *r.completion.token_ids]) for r in rollouts]
    logprobs = [torch.tensor(r.completion.rollout_logprobs, dtype=torch.float32) for r in rollouts]
    lengths = torch.tensor([len(r.completion.token_ids) for r in rollouts])
    pad = torch.nn.utils.rnn.pad_sequence
    mask = lengths_to_mask(lengths)
    zeros = torch.zeros(mask.shape, device=device)
    return TrainBatch(
        input_ids=pad(sequences, batch_first=True, padding_value=pad_token_id).to(device, non_blocking=True),
        prompt_lengths=torch.tensor([len(r.prompt_ids) for r in rollouts]),
        completion_lengths=lengths,
        completion_mask=mask.to(device, non_blocking=True),
        rollout_logprobs=pad(logprobs, batch_first=True).to(device, non_blocking=True),
        old_logprobs=zeros,
        ref_logprobs=None,
        entropies=zeros,
        gradient_norms=zeros,
        advantages=zeros,
        rewards=torch.tensor([r.reward for r in rollouts], dtype=torch.float32),
        group_ids=torch.tensor([r.group_id for r in rollouts]),
        truncated=torch.tensor([float(r.completion.finish_reason == "length") for r in rollouts]),
        reward_parts=_reward_parts(rollouts, {}),
    )


def lengths_to_mask(lengths: Tensor) -> Tensor:
    """1 at the tokens of completions of these lengths [B], [B, longest] float32 on their device."""
    places = torch.arange(int(lengths.max()), device=lengths.device)
    return (places[None] < lengths[:, None]).float()


def with_rewards(batch: TrainBatch, groups: Sequence[RolloutGroup], functions: Mapping[str, float]) -> TrainBatch:
    """The batch of some groups with their rewards, which were not known when `build_batch` made it."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards, parts = torch.tensor([r.reward for r in rollouts]), _reward_parts(rollouts, functions)
    return replace(batch, rewards=rewards, reward_parts=parts)


def _reward_parts(rollouts: Sequence[Rollout], functions: Mapping[str, float]) -> Tensor | None:
    """Parts of the rewards before their weights, and the weights, [B, R, 2]; None where no reward has parts.

    Parts that a completion lacks, as where scoring failed, share what its others leave of its reward.
    """
    weights = {part: part_weight(functions, part) for r in rollouts for part in r.reward_breakdown}
    names = sorted(part for part, weight in weights.items() if weight)
    if not names:
        return None

    def parts_of(rollout: Rollout) -> list[tuple[float, float]]:
        known = rollout.reward_breakdown
        rest = (rollout.reward - sum(known.values())) / max(1, len(weights) - len(known))
        return [(known.get(name, rest) / weights[name], weights[name]) for name in names]

    return torch.tensor([parts_of(rollout) for rollout in rollouts], dtype=torch.float32)


def select_rows(batch: TrainBatch, rows: Tensor) -> TrainBatch:
    """Some rows of a batch, given on the host, cut to their own longest sequence and completion."""
    longest_completion = int(batch.completion_lengths[rows].max())
    longest = int((batch.prompt_lengths + batch.completion_lengths)[rows].max())
    there = rows.to(batch.input_ids.device, non_blocking=True)
    chosen = _map_tensors(batch, lambda tensor: tensor[rows if tensor.device == rows.device else there])
    return replace(
        _map_tensors(chosen, lambda tensor: tensor[:, :longest_completion] if tensor.dim() == 2 else tensor),
        input_ids=chosen.input_ids[:, :longest],
    )


@dataclass(frozen=True)
class UpdateBatch:
    """The rows of one optimizer step, in microbatches.

    A microbatch without rows is one that other ranks have and this one does not: it takes part in the forward
    and the backward pass with another row and weight 0.
    """

    microbatches: tuple[Tensor, ...]  # row indices on the host, [b] int64 each

    @property
    def rows(self) -> Tensor:
        """All rows of the update batch."""
        return torch.cat(self.microbatches)

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
) -> list[UpdateBatch]:
    """Cut the rows into update batches in order, and each into microbatches under a token budget.

    The same plan serves old log-probabilities, reference and every pass: a row is always computed beside the
    same others, so that the importance ratio of the first update is exactly 1.

    Args:
        batch: B rows.
        update_batch_size: completions of one optimizer step on this rank.
        tokens_per_microbatch: most tokens that a microbatch computes; a single longer row stands alone.
        gather: the items of all ranks; every rank gets as many microbatches as the one with the most.
        packed: whether the model takes packed rows. Then groups stay together, as a prompt is computed once for
            its rows; else rows are sorted by length, and padding counts.
    """
    groups, prompts, completions = batch.group_ids, batch.prompt_lengths, batch.completion_lengths
    plan = []
    for rows in torch.arange(len(prompts)).split(update_batch_size):
        if packed:
            parts = _cut_packed(groups[rows], prompts[rows], completions[rows], tokens_per_microbatch)
        else:
            parts = _cut_by_length((prompts + completions)[rows], tokens_per_microbatch)
        plan.append(UpdateBatch(tuple(rows[part] for part in parts)))
    return _padded(plan, gather([[len(update_batch.microbatches) for update_batch in plan]]))


def _cut_by_length(lengths: Tensor, budget: int) -> list[Tensor]:
    """Longest rows first, as many to a microbatch as rows x longest sequence stay within the budget."""
    longest_first = lengths.argsort(descending=True, stable=True)
    microbatches: list[Tensor] = []
    start = 0
    while start < len(lengths):
        size = max(1, budget // int(lengths[longest_first[start]]))
        microbatches.append(longest_first[start : start + size])
        start += size
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
    """The plan with as many microbatches per update batch as the rank with the most has by ``counts``."""
    padded = []
    for update_batch, most in zip(plan, map(max, zip(*counts, strict=True)), strict=True):
        own = update_batch.microbatches
        padded.append(UpdateBatch((*own, *[own[0][:0]] * (most - len(own)))))
    return padded


def _map_tensors(batch: TrainBatch, function) -> TrainBatch:  # type: ignore[no-untyped-def]
    changed = {
        field.name: function(getattr(batch, field.name))
        for field in fields(batch)
        if getattr(batch, field.name) is not None
    }
    return replace(batch, **changed)
