from dataclasses import replace
from typing import get_args

import pytest
import torch

from tests.trainer.algorithm.batches import make_batch, make_groups
from trainer.algorithm.batching import build_batch, plan_update_batches, select_rows, with_rewards
from trainer.algorithm.passes import denominator_mask
from trainer.config.algorithm import AlgorithmConfig
from trainer.types import RowLayout


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


def test_rewards_that_are_whole_numbers_become_float32():
    groups = make_groups([[2, 3]], [4])
    whole = [replace(rollout, reward=1) for rollout in groups[0].rollouts]
    groups = [replace(groups[0], rollouts=whole)]
    batch = build_batch(groups, pad_token_id=0, device=torch.device("cpu"))
    assert with_rewards(batch, groups, {"first": 1.0}).rewards.dtype == torch.float32


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


@pytest.mark.parametrize("layout", get_args(RowLayout))
def test_a_row_longer_than_the_budget_stands_alone(layout):
    plan = plan_update_batches(
        make_batch(), update_batch_size=8, tokens_per_microbatch=1, layout=layout
    )
    assert sorted(rows.tolist() for rows in plan[0].microbatches) == [[row] for row in range(8)]


def test_rows_in_a_line_fill_what_the_longest_ones_leave():
    # lengths 11 15 9 18 18 12 15 19, 117 in all
    plan = plan_update_batches(make_batch(), 8, 40, layout="line")
    # 19 + 18, 18 + 15, 15 + 12 + 11; then 9 into none of 37, 33, 38: 9 stands alone, last
    assert [rows.tolist() for rows in plan[0].microbatches] == [[6, 5, 0], [7, 3], [4, 1], [2]]
    plan = plan_update_batches(make_batch(), 8, 42, layout="line")
    # 9 fits beside 18 + 15; 42, 38, 37
    assert [rows.tolist() for rows in plan[0].microbatches] == [[4, 1, 2], [6, 5, 0], [7, 3]]


def partitions(rows):
    """All ways to distribute rows over microbatches."""
    if not rows:
        yield []
        return
    first, *others = rows
    for parts in partitions(others):
        yield [[first], *parts]
        for place, part in enumerate(parts):
            yield [*parts[:place], [first, *part], *parts[place + 1 :]]


@pytest.mark.parametrize("seed", range(20))
def test_no_split_of_padded_rows_has_fewer_microbatches(seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 30, (7,), generator=generator).tolist()
    batch = build_batch(make_groups([sizes], [5]), 0, torch.device("cpu"))
    [plan] = plan_update_batches(batch, 7, 60)
    fewest = min(
        len(parts)
        for parts in partitions([5 + size for size in sizes])
        if all(len(part) * max(part) <= 60 for part in parts)
    )
    assert len(plan.microbatches) == fewest


def test_packed_rows_stay_with_their_group_and_a_prompt_counts_once():
    batch = make_batch()  # groups of 4: prompts 6 and 11, completions 5 9 3 12 | 7 1 4 8
    plan = plan_update_batches(
        batch, update_batch_size=8, tokens_per_microbatch=35, layout="shared_prompts"
    )
    # 6 + 5 + 9 + 3 + 12 = 35; 11 + 7 + 1 + 4 + 8 = 31
    assert [rows.tolist() for rows in plan[0].microbatches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    plan = plan_update_batches(
        batch, update_batch_size=8, tokens_per_microbatch=34, layout="shared_prompts"
    )
    # 6 + 5 + 9 + 3 = 23; 6 + 12 = 18 as the group goes on; 11 + 7 + 1 + 4 + 8 = 31
    assert [rows.tolist() for rows in plan[0].microbatches] == [[0, 1, 2], [3], [4, 5, 6, 7]]
    plan = plan_update_batches(
        batch, update_batch_size=2, tokens_per_microbatch=1000, layout="shared_prompts"
    )
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
