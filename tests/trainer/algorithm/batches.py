"""Small hand-made rollout batches for tests."""

from typing import Any

import torch

from trainer.algorithm.batching import build_batch
from trainer.rules.interface import LossInputs, UpdateTotals
from trainer.types import Completion, Problem, Rollout, RolloutGroup, TrainBatch


def make_groups(
    sizes: list[list[int]],
    prompt_lengths: list[int],
    seed: int = 0,
    rewards: tuple[float, float] = (3.0, -1.0),
) -> list[RolloutGroup]:
    """One group per prompt; ``sizes[p]`` are the completion lengths of prompt p. The two rewards
    alternate.
    """
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 60, (count,), generator=generator).tolist())

    groups = []
    for group_id, (lengths, prompt_length) in enumerate(zip(sizes, prompt_lengths, strict=True)):
        prompt = tokens(prompt_length)
        problem = Problem(str(group_id), "", "", "", "test")
        rollouts = []
        for k, length in enumerate(lengths):
            completion = Completion(tokens(length), (-1.0,) * length, "stop")
            reward = rewards[k % 2]
            parts = {"first": 0.75 * reward, "second": 0.25 * reward}
            rollouts.append(
                Rollout(group_id, problem, prompt, completion, reward, parts, reward > 0)
            )
        groups.append(RolloutGroup(group_id, rollouts))
    return groups


def batch_of(completion_mask: torch.Tensor, **fields: Any) -> TrainBatch:
    """A batch of completions with a mask [B, T] and given fields; others are zero, the reference's
    None.
    """
    rows = torch.zeros(len(completion_mask))
    zeros = torch.zeros_like(completion_mask)
    empty = {
        **dict.fromkeys(
            ("rollout_logprobs", "old_logprobs", "entropies", "gradient_norms", "advantages"), zeros
        ),
        **dict.fromkeys(
            (
                "input_ids",
                "prompt_lengths",
                "rewards",
                "group_ids",
                "group_means",
                "group_stds",
                "truncated",
                "failed",
            ),
            rows,
        ),
        "ref_logprobs": None,
        "completion_lengths": completion_mask.sum(dim=1).long(),
    }
    return TrainBatch(completion_mask=completion_mask, **{**empty, **fields})


def loss_inputs(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    totals: UpdateTotals,
    **fields: Any,
) -> LossInputs:
    """Inputs of a loss on all tokens [B, T], by an exact engine and without a reference unless
    given.
    """
    ones = torch.ones_like(old_logprobs)
    usual = {
        "ref_logprobs": None,
        "rollout_logprobs": old_logprobs,
        "completion_mask": ones,
        "token_mask": ones,
    }
    return LossInputs(
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        advantages=advantages,
        totals=totals,
        **{**usual, **fields},
    )


def make_batch(seed: int = 0) -> TrainBatch:
    groups = make_groups([[5, 9, 3, 12], [7, 1, 4, 8]], [6, 11], seed)
    return build_batch(groups, pad_token_id=0, device=torch.device("cpu"))
