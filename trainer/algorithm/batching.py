"""From rollout groups to tensors, update batches and microbatches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Return some rows of a batch, given on the host, cut to their own longest sequence and completion."""
    longest_completion = int(batch.completion_lengths[rows].max())
    longest = int((batch.prompt_lengths + batch.completion_lengths)[rows].max())
    on_device = rows.to(batch.input_ids.device, non_blocking=True)

    def cut(tensor: Tensor) -> Tensor:
        selected = tensor[rows if tensor.device == rows.device else on_device]
        return selected[:, :longest_completion] if selected.dim() == 2 else selected

    return replace(map_tensors(batch, cut), input_ids=batch.input_ids[on_device, :longest])


def map_tensors(batch: TrainBatch, function: Callable[[Tensor], Tensor]) -> TrainBatch:
    """Return a batch with a function applied to each of its tensors."""
    tensors = {name: tensor for name, tensor in vars(batch).items() if tensor is not None}
    return replace(batch, **{name: function(tensor) for name, tensor in tensors.items()})


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
    groups = batch.group_ids.tolist()
    lengths = batch.prompt_lengths + batch.completion_lengths

    def padded(row: int, others: Sequence[int]) -> int:
        return int(lengths[others[0] if others else row])

    def shared(row: int, others: Sequence[int]) -> int:
        has_prompt = others and groups[others[-1]] == groups[row]
        return int((batch.completion_lengths if has_prompt else lengths)[row])

    plan = []
    for rows in torch.arange(len(lengths)).split(update_batch_size):
        if not packed:
            rows = rows[lengths[rows].argsort(descending=True, stable=True)]
        parts = _cut(rows.tolist(), tokens_per_microbatch, shared if packed else padded)
        plan.append(UpdateBatch(tuple(map(torch.tensor, parts))))
    return _padded(plan, gather([[len(update_batch.microbatches) for update_batch in plan]]))


def _cut(rows: Sequence[int], budget: int, cost: Callable[[int, Sequence[int]], int]) -> list[list[int]]:
    """Fill microbatches with rows in order; ``cost`` is the tokens that a row adds to the rows before it."""
    microbatches: list[list[int]] = [[]]
    tokens = 0
    for row in rows:
        if microbatches[-1] and tokens + cost(row, microbatches[-1]) > budget:
            microbatches.append([])
            tokens = 0
        tokens += cost(row, microbatches[-1])
        microbatches[-1].append(row)
    return microbatches


def _padded(plan: Sequence[UpdateBatch], counts: Sequence[Sequence[int]]) -> list[UpdateBatch]:
    """Return the plan with as many microbatches per update batch as the rank with the most has by ``counts``."""
    padded = []
    for update_batch, most in zip(plan, map(max, zip(*counts, strict=True)), strict=True):
        own = update_batch.microbatches
        padded.append(UpdateBatch((*own, *[own[0][:0]] * (most - len(own)))))
    return padded
