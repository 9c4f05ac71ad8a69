"""From rollout groups to tensors, update batches and microbatches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rewards import part_weight
from trainer.rules.inputs import Gather
from trainer.types import RolloutGroup, TrainBatch


def build_batch(
    groups: Sequence[RolloutGroup], pad_token_id: int, device: torch.device
) -> TrainBatch:
    """Return the completions of some groups as tensors; model outputs are zero until scoring."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    sequences = [torch.tensor([*r.prompt_ids, *r.completion.token_ids]) for r in rollouts]
    logprobs = [torch.tensor(r.completion.rollout_logprobs, dtype=torch.float32) for r in rollouts]
    lengths = torch.tensor([len(r.completion.token_ids) for r in rollouts])
    pad = torch.nn.utils.rnn.pad_sequence
    mask = lengths_to_mask(lengths)
    zeros = torch.zeros(mask.shape, device=device)
    return TrainBatch(
        input_ids=pad(sequences, batch_first=True, padding_value=pad_token_id).to(
            device, non_blocking=True
        ),
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
    )


def lengths_to_mask(lengths: Tensor) -> Tensor:
    """Return 1 at the tokens of completions of these lengths [B], [B, longest] float32 on their
    device.
    """
    places = torch.arange(int(lengths.max()), device=lengths.device)
    return (places[None] < lengths[:, None]).float()


def with_rewards(
    batch: TrainBatch, groups: Sequence[RolloutGroup], functions: Mapping[str, float]
) -> TrainBatch:
    """Return the batch of some groups with their rewards, which were not known when `build_batch`
    made it.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return replace(
        batch,
        rewards=torch.tensor([r.reward for r in rollouts]),
        reward_parts=[r.reward_breakdown for r in rollouts],
        part_weights={
            part: part_weight(functions, part) for r in rollouts for part in r.reward_breakdown
        },
    )


def select_rows(batch: TrainBatch, rows: Tensor) -> TrainBatch:
    """Return some rows of a batch, given on the host, cut to their own longest sequence and
    completion.
    """
    longest_completion = int(batch.completion_lengths[rows].max())
    longest = int((batch.prompt_lengths + batch.completion_lengths)[rows].max())
    on_device = rows.to(batch.input_ids.device, non_blocking=True)

    def cut(tensor: Tensor) -> Tensor:
        selected = tensor[rows if tensor.device == rows.device else on_device]
        return selected[:, :longest_completion] if selected.dim() == 2 else selected

    tensors: dict[str, Any] = {
        name: cut(value) for name, value in vars(batch).items() if isinstance(value, Tensor)
    }
    return replace(batch, **{**tensors, "input_ids": batch.input_ids[on_device, :longest]})


@dataclass(frozen=True)
class UpdateBatch:
    """The rows of one optimizer step, in microbatches.

    A microbatch without rows is one that other ranks have and this one does not: it takes part in
    the forward and the backward pass with another row and weight 0.
    """

    microbatches: tuple[Tensor, ...]  # row indices on the host, [b] int64 each

    @property
    def rows(self) -> Tensor:
        """All rows of the update batch."""
        return torch.cat(self.microbatches)

    @property
    def stand_in(self) -> Tensor:
        """The row of a microbatch without rows, [1]: the last, which is the shortest where rows are
        sorted.
        """
        return self.rows[-1:]


def plan_update_batches(
    batch: TrainBatch,
    update_batch_size: int,
    tokens_per_microbatch: int,
    gather: Gather = lambda items: items,
    packed: bool = False,
) -> list[UpdateBatch]:
    """Cut the rows into update batches in order, and each into microbatches under a token budget.

    The same plan serves old log-probabilities, reference and every pass: a row is always computed
    beside the same others, so that the importance ratio of the first update is exactly 1.

    Args:
        batch: B rows.
        update_batch_size: completions of one optimizer step on this rank.
        tokens_per_microbatch: most tokens that a microbatch computes; a single longer row stands
            alone.
        gather: the items of all ranks; every rank gets as many microbatches as the one with the
            most.
        packed: whether the model takes packed rows. Then groups stay together, as a prompt is
            computed once for its rows; else rows are sorted by length, and padding counts.
    """
    lengths = batch.prompt_lengths + batch.completion_lengths

    def computed(rows: list[int]) -> int:
        """Return the tokens that a microbatch of these rows computes."""
        if not packed:
            return len(rows) * int(lengths[rows[0]])  # the longest comes first
        prompts = dict(
            zip(batch.group_ids[rows].tolist(), batch.prompt_lengths[rows].tolist(), strict=True)
        )
        return int(batch.completion_lengths[rows].sum()) + sum(prompts.values())

    plan: list[list[list[int]]] = []
    for rows in torch.arange(len(lengths)).split(update_batch_size):
        if not packed:
            rows = rows[lengths[rows].argsort(descending=True, stable=True)]
        plan.append([[]])
        for row in rows.tolist():
            if plan[-1][-1] and computed([*plan[-1][-1], row]) > tokens_per_microbatch:
                plan[-1].append([])
            plan[-1][-1].append(row)
    counts = gather([list(map(len, plan))])
    for microbatches, *counted in zip(plan, *counts, strict=True):
        microbatches += [[]] * (max(counted) - len(microbatches))  # that only other ranks have
    return [
        UpdateBatch(tuple(torch.tensor(rows, dtype=torch.int64) for rows in parts))
        for parts in plan
    ]
