"""Convert rollout groups to tensors, update batches and microbatches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rewards import part_weight
from trainer.rules.groups import group_means, group_std
from trainer.rules.interface import Gather
from trainer.types import Rollout, RolloutGroup, RowLayout, TrainBatch, all_rollouts


def build_batch(
    groups: Sequence[RolloutGroup], pad_token_id: int, device: torch.device
) -> TrainBatch:
    """Return the completions of the groups as tensors. Model outputs are zero until
    `Scorer.score`.
    """
    rollouts = all_rollouts(groups)
    sequences = [torch.tensor([*r.prompt_ids, *r.completion.token_ids]) for r in rollouts]
    logprobs = [torch.tensor(r.completion.rollout_logprobs, dtype=torch.float32) for r in rollouts]
    lengths = torch.tensor([len(r.completion.token_ids) for r in rollouts])
    pad = torch.nn.utils.rnn.pad_sequence
    mask = lengths_to_mask(lengths)
    zeros = torch.zeros(mask.shape, device=device)
    rewards = torch.tensor([r.reward for r in rollouts], dtype=torch.float32)
    group_ids = torch.tensor([r.group_id for r in rollouts])
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
        rewards=rewards,
        group_ids=group_ids,
        group_means=group_means(rewards, group_ids)[0].float(),
        group_stds=group_std(rewards, group_ids).float(),
        truncated=torch.tensor([float(r.completion.finish_reason == "length") for r in rollouts]),
        failed=torch.zeros(len(rollouts)),
    )


def lengths_to_mask(lengths: Tensor) -> Tensor:
    """Return the token mask of completions with these lengths [B]: [B, max length] float32, on the
    same device.
    """
    positions = torch.arange(int(lengths.max()), device=lengths.device)
    return (positions[None] < lengths[:, None]).float()


def with_rewards(
    batch: TrainBatch, groups: Sequence[RolloutGroup], functions: Mapping[str, float]
) -> TrainBatch:
    """Return the batch with the groups' rewards, which `build_batch` did not have yet.

    A completion whose scoring failed is left out of the update. It gets the mean reward of the
    other completions in its group, so it does not change their advantages either. ``functions``
    maps each reward function to its weight.
    """
    rollouts: list[Rollout] = []
    part_weights: dict[str, float] = {}
    for group in groups:
        rollouts += without_failures(group)
    for rollout in rollouts:
        for part in rollout.reward_breakdown:
            part_weights[part] = part_weight(functions, part)
    rewards = torch.tensor([r.reward for r in rollouts], dtype=torch.float32)
    return replace(
        batch,
        rewards=rewards,
        group_means=group_means(rewards, batch.group_ids)[0].float(),
        group_stds=group_std(rewards, batch.group_ids).float(),
        failed=torch.tensor([float(r.scoring != "ok") for r in rollouts]),
        reward_parts=[r.reward_breakdown for r in rollouts],
        part_weights=part_weights,
    )


def without_failures(group: RolloutGroup) -> list[Rollout]:
    """Return the group's rollouts; completions whose scoring failed get the mean reward and
    breakdown of the others. If scoring failed for all of them, they are unchanged.
    """
    scored = [rollout for rollout in group.rollouts if rollout.scoring == "ok"]
    if not scored or len(scored) == len(group.rollouts):
        return list(group.rollouts)
    mean = sum(rollout.reward for rollout in scored) / len(scored)
    parts: set[str] = set()
    for rollout in scored:
        parts.update(rollout.reward_breakdown)
    breakdown = {}
    for part in sorted(parts):
        values = [rollout.reward_breakdown.get(part, 0.0) for rollout in scored]
        breakdown[part] = sum(values) / len(values)
    rollouts = []
    for rollout in group.rollouts:
        if rollout.scoring != "ok":
            rollout = replace(rollout, reward=mean, reward_breakdown=breakdown)
        rollouts.append(rollout)
    return rollouts


def select_rows(batch: TrainBatch, rows: Tensor) -> TrainBatch:
    """Return some rows of a batch, trimmed to their longest sequence and completion. ``rows`` is on
    the host.
    """
    longest_completion = int(batch.completion_lengths[rows].max())
    longest = int((batch.prompt_lengths + batch.completion_lengths)[rows].max())
    on_device = rows.to(batch.input_ids.device, non_blocking=True)

    def cut(tensor: Tensor) -> Tensor:
        selected = tensor[rows if tensor.device == rows.device else on_device]
        return selected[:, :longest_completion] if selected.dim() == 2 else selected

    tensors: dict[str, Any] = {}
    for name, value in vars(batch).items():
        if isinstance(value, Tensor):
            tensors[name] = cut(value)
    tensors["input_ids"] = batch.input_ids[on_device, :longest]
    return replace(batch, **tensors)


@dataclass(frozen=True)
class UpdateBatch:
    """The rows of one optimizer step, in microbatches.

    Every rank has the same number of microbatches: a rank with fewer appends empty ones. An empty
    microbatch runs forward and backward on a dummy row with weight 0.
    """

    microbatches: tuple[Tensor, ...]  # row indices on the host, [b] int64 each

    @property
    def rows(self) -> Tensor:
        """All rows of the update batch."""
        return torch.cat(self.microbatches)

    @property
    def dummy_row(self) -> Tensor:
        """The dummy row for an empty microbatch, [1]: the last row, which is the shortest if rows
        are padded.
        """
        return self.rows[-1:]


def plan_update_batches(
    batch: TrainBatch,
    update_batch_size: int,
    tokens_per_microbatch: int,
    gather: Gather = lambda items: items,
    layout: RowLayout = "padded",
) -> list[UpdateBatch]:
    """Split the rows into update batches in order, and each update batch into microbatches under a
    token budget.

    The same plan is used for old and reference log-probabilities and for every pass. Unless a pass
    skips rows, a row shares its microbatch with the same rows each time, so the importance ratio of
    the first update is exactly 1.

    Args:
        batch: B rows.
        update_batch_size: completions per optimizer step on this rank.
        tokens_per_microbatch: token budget of a microbatch; a longer row gets its own microbatch.
        gather: gathers items from all ranks, so that every rank gets the same number of
            microbatches.
        layout: how the model computes rows.
    """
    microbatches_of = {
        "padded": _padded_microbatches,
        "line": _microbatches_in_line,
        "shared_prompts": _microbatches_with_shared_prompts,
    }[layout]
    plan = []
    for rows in torch.arange(len(batch.completion_lengths)).split(update_batch_size):
        plan.append(microbatches_of(batch, rows, tokens_per_microbatch))
    _pad_to_same_counts(plan, gather)
    update_batches = []
    for microbatches in plan:
        tensors = [torch.tensor(rows, dtype=torch.int64) for rows in microbatches]
        update_batches.append(UpdateBatch(tuple(tensors)))
    return update_batches


def _padded_microbatches(batch: TrainBatch, rows: Tensor, budget: int) -> list[list[int]]:
    """Split rows by descending length; padding counts against the budget.

    No other split has fewer microbatches. A row that shares a microbatch with the longest row costs
    as much as the longest row, so the next longest rows belong there. The same applies to the
    remaining rows.
    """
    longest_first, lengths = _longest_first(batch, rows)
    length_of = dict(zip(longest_first, lengths, strict=True))

    def computed(microbatch: list[int]) -> int:
        return len(microbatch) * length_of[microbatch[0]]

    return _cut(longest_first, computed, budget)


def _microbatches_in_line(batch: TrainBatch, rows: Tensor, budget: int) -> list[list[int]]:
    """Put each row, longest first, into the fullest microbatch with enough space (best-fit
    decreasing). Return the microbatches fullest first, so that ranks compute about equally full
    ones at the same time.
    """
    microbatches: list[list[int]] = []
    tokens: list[int] = []
    for row, length in zip(*_longest_first(batch, rows), strict=True):
        with_room = [place for place, sum_ in enumerate(tokens) if sum_ + length <= budget]
        if with_room:
            fullest = max(with_room, key=lambda place: tokens[place])
            microbatches[fullest].append(row)
            tokens[fullest] += length
        else:
            microbatches.append([row])
            tokens.append(length)
    order = sorted(range(len(tokens)), key=lambda place: -tokens[place])
    return [microbatches[place] for place in order]


def _microbatches_with_shared_prompts(
    batch: TrainBatch, rows: Tensor, budget: int
) -> list[list[int]]:
    """Split rows in their order, which keeps groups together. A prompt that rows of a microbatch
    share counts once against the budget.
    """

    def computed(microbatch: list[int]) -> int:
        prompts = dict(
            zip(
                batch.group_ids[microbatch].tolist(),
                batch.prompt_lengths[microbatch].tolist(),
                strict=True,
            )
        )
        return int(batch.completion_lengths[microbatch].sum()) + sum(prompts.values())

    return _cut(rows.tolist(), computed, budget)


def _longest_first(batch: TrainBatch, rows: Tensor) -> tuple[list[int], list[int]]:
    """Return the rows in descending order of length, and their lengths."""
    lengths = (batch.prompt_lengths + batch.completion_lengths)[rows]
    order = lengths.argsort(descending=True, stable=True)
    return rows[order].tolist(), lengths[order].tolist()


def _cut(rows: list[int], computed: Callable[[list[int]], int], budget: int) -> list[list[int]]:
    """Split rows in order into microbatches of at most ``budget`` tokens each; a longer row gets
    its own microbatch.
    """
    microbatches: list[list[int]] = [[]]
    for row in rows:
        current = microbatches[-1]
        if current and computed([*current, row]) > budget:
            microbatches.append([row])
        else:
            current.append(row)
    return microbatches


def _pad_to_same_counts(plan: list[list[list[int]]], gather: Gather) -> None:
    """Append empty microbatches to each update batch until all ranks have the same number."""
    counts_of_ranks = gather([[len(microbatches) for microbatches in plan]])
    for microbatches, *counts in zip(plan, *counts_of_ranks, strict=True):
        while len(microbatches) < max(counts):
            microbatches.append([])
