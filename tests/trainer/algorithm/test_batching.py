from dataclasses import replace

import pytest
import torch

from tests.trainer.algorithm.batches import make_batch, make_groups
from trainer.algorithm.batching import build_batch, plan_update_batches, select_rows, with_rewards
from trainer.algorithm.passes import denominator_mask
from trainer.config.algorithm import AlgorithmConfig


def test_rows_are_prompt_completion_padding():
    groups = make_groups([[2, 3]], [4])
    batch = build_batch(groups, pad_token_id=0, device=torch.device("cpu"))
    first, second = groups[0].rollouts
    assert batch.input_ids.tolist() == [
        [*first.prompt_ids, *first.completion.token_ids, 0],
        [*second.prompt_ids, *second.completion.token_ids],
    ]
    assert batch.prompt_lengths.tolist() == [4, 4]
    assert batch.completion_mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.rollout_logprobs.tolist() == [[-1, -1, 0], [-1, -1, -1]]
    assert batch.rewards.tolist() == [3, -1]
    assert batch.truncated.tolist() == [0, 0]
    assert batch.group_ids.tolist() == [0, 0]


def test_a_completion_that_could_not_be_scored_leaves_the_update():
    groups = make_groups([[2, 3, 4]], [4])
    good, bad, failed = groups[0].rollouts
    failed = replace(failed, reward=-9.0, reward_breakdown={}, scoring="error")
    groups = [replace(groups[0], rollouts=[good, bad, failed])]
    batch = build_batch(groups, pad_token_id=0, device=torch.device("cpu"))
    batch = with_rewards(batch, groups, {"first": 1.0})
    assert batch.failed.tolist() == [0, 0, 1]
    # the failed one does not move the mean of the others: 3 and -1
    assert batch.rewards.tolist() == [3, -1, 1]
    assert batch.reward_parts[2] == {"first": 0.75, "second": 0.25}
    assert denominator_mask(batch, AlgorithmConfig()).sum(dim=1).tolist() == [2, 3, 0]


def test_a_group_that_nobody_could_score_keeps_its_rewards():
    groups = make_groups([[2, 3]], [4])
    failed = [replace(rollout, scoring="timeout") for rollout in groups[0].rollouts]
    groups = [replace(groups[0], rollouts=failed)]
    batch = build_batch(groups, pad_token_id=0, device=torch.device("cpu"))
    batch = with_rewards(batch, groups, {"first": 1.0})
    assert batch.rewards.tolist() == [3, -1]
    assert denominator_mask(batch, AlgorithmConfig()).sum() == 0


def test_selected_rows_lose_padding_they_do_not_need():
    batch = make_batch()
    part = select_rows(batch, torch.tensor([0, 5]))
    assert part.completion_mask.tolist() == [[1] * 5, [1] + [0] * 4]
    assert part.input_ids.shape == (2, 12)  # prompt 11 + 1 is longer than 6 + 5
    assert torch.equal(part.input_ids[1], batch.input_ids[5, :12])


def test_plan_covers_every_row_once_in_length_sorted_microbatches():
    batch = make_batch()  # lengths 11 15 9 18 | 18 12 15 19
    plan = plan_update_batches(batch, update_batch_size=4, tokens_per_microbatch=36)
    assert [[rows.tolist() for rows in part.microbatches] for part in plan] == [
        [[3, 1], [0, 2]],
        [[7], [4, 6], [5]],
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_longer_than_the_budget_stands_alone(packed):
    plan = plan_update_batches(
        make_batch(), update_batch_size=8, tokens_per_microbatch=1, packed=packed
    )
    assert sorted(rows.tolist() for rows in plan[0].microbatches) == [[row] for row in range(8)]


def test_packed_rows_stay_with_their_group_and_a_prompt_counts_once():
    batch = make_batch()  # groups of 4: prompts 6 and 11, completions 5 9 3 12 | 7 1 4 8
    plan = plan_update_batches(batch, update_batch_size=8, tokens_per_microbatch=35, packed=True)
    # 6 + 5 + 9 + 3 + 12 = 35; 11 + 7 + 1 + 4 + 8 = 31
    assert [rows.tolist() for rows in plan[0].microbatches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    plan = plan_update_batches(batch, update_batch_size=8, tokens_per_microbatch=34, packed=True)
    # 6 + 5 + 9 + 3 = 23; 6 + 12 = 18 as the group goes on; 11 + 7 + 1 + 4 + 8 = 31
    assert [rows.tolist() for rows in plan[0].microbatches] == [[0, 1, 2], [3], [4, 5, 6, 7]]
    plan = plan_update_batches(batch, update_batch_size=2, tokens_per_microbatch=1000, packed=True)
    assert [[rows.tolist() for rows in part.microbatches] for part in plan] == [
        [[k, k + 1]] for k in (0, 2, 4, 6)
    ]


def test_every_rank_has_as_many_microbatches_as_the_one_with_the_most():
    counts = [[3, 1], [1, 4]]  # of two other ranks, for both update batches
    plan = plan_update_batches(make_batch(), 4, 36, gather=lambda items: [*items, *counts])
    assert [[len(rows) for rows in part.microbatches] for part in plan] == [[2, 2, 0], [1, 2, 1, 0]]
    lengths = make_batch().prompt_lengths + make_batch().completion_lengths
    # what stands in is as short as there is
    assert int(lengths[plan[1].dummy_row]) == int(lengths[4:].min())
