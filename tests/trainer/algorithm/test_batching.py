from functools import cache

import pytest
import torch

from tests.trainer.algorithm.batches import make_batch, make_groups
from trainer.algorithm.batching import build_batch, plan_update_batches, select_rows
from trainer.policy.row_cost import RowCost


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
    assert batch.group_ids.tolist() == [0, 0]


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


def test_a_row_longer_than_the_budget_stands_alone():
    plan = plan_update_batches(make_batch(), update_batch_size=8, tokens_per_microbatch=1)
    assert sorted(int(rows) for rows in plan[0].microbatches) == list(range(8))


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
        [[0, 1]],
        [[2, 3]],
        [[4, 5]],
        [[6, 7]],
    ]


def test_a_packed_row_longer_than_the_budget_stands_alone():
    plan = plan_update_batches(make_batch(), update_batch_size=8, tokens_per_microbatch=1, packed=True)
    assert [rows.tolist() for rows in plan[0].microbatches] == [[row] for row in range(8)]


def test_rows_are_cut_where_that_costs_least():
    batch = make_batch()  # lengths 19 18 18 15 15 12 11 9

    def lengths(cost: RowCost) -> list[list[int]]:
        plan = plan_update_batches(batch, 8, 1000, cost=cost)
        total = batch.prompt_lengths + batch.completion_lengths
        return [total[rows].tolist() for rows in plan[0].microbatches]

    assert lengths(RowCost(microbatch=1000)) == [[19, 18, 18, 15, 15, 12, 11, 9]]
    # 3 * 19 + 2 * 15 + 3 * 12 = 123 and three times 7; in two 5 * 19 + 3 * 12 = 131 and twice 7, one more
    assert lengths(RowCost(microbatch=7)) == [[19, 18, 18], [15, 15], [12, 11, 9]]
    assert lengths(RowCost(microbatch=9)) == [[19, 18, 18, 15, 15], [12, 11, 9]]
    assert lengths(RowCost(attention=1.0, microbatch=9)) == [[19], [18, 18], [15, 15], [12], [11], [9]]


@pytest.mark.parametrize("cost", [RowCost(microbatch=4), RowCost(attention=0.05, microbatch=11)])
@pytest.mark.parametrize("budget", [1, 40, 60, 1000])
def test_no_other_cut_within_the_budget_is_cheaper(cost, budget):
    batch = make_batch()
    total = (batch.prompt_lengths + batch.completion_lengths).sort(descending=True).values.tolist()

    @cache
    def cheapest(start: int) -> float:
        sizes = range(1, len(total) - start + 1)
        allowed = (size for size in sizes if size == 1 or size * total[start] <= budget)
        return min(
            (cost.microbatch + size * cost.of_row(total[start]) + cheapest(start + size) for size in allowed),
            default=0.0,
        )

    parts = [select_rows(batch, rows) for rows in plan_update_batches(batch, 8, budget, cost=cost)[0].microbatches]
    assert all(len(part.rewards) == 1 or part.input_ids.numel() <= budget for part in parts)
    spent = sum(cost.microbatch + len(p.rewards) * cost.of_row(p.input_ids.shape[1]) for p in parts)
    assert spent == pytest.approx(cheapest(0))
