from types import SimpleNamespace

import pytest

from tests.trainer.algorithm.batches import make_groups
from trainer.rollouts.balance import balance_groups, equal_shares


def interleaved(groups, rank, ranks):
    """A rank whose collective gathers these groups, in the order of the problems."""
    return SimpleNamespace(rank=rank, world_size=ranks, gather=lambda _: groups)


def tokens(groups):
    rows = [row for group in groups for row in group.rollouts]
    return sum(len(row.prompt_ids) + len(row.completion.token_ids) for row in rows)


def test_shares_have_as_many_places_and_about_equal_sums():
    sizes = [100, 1, 2, 3, 60, 50, 4, 5]
    assert equal_shares(sizes, 2) == [[0, 3, 6, 7], [1, 2, 4, 5]]  # 112 and 113
    assert equal_shares([7, 7, 7, 7], 4) == [[0], [1], [2], [3]]


def test_an_exchange_improves_what_the_largest_first_leaves():
    # largest first: 8 + 5 + 4 = 17 against 7 + 6 + 0 = 13; the best split is 15 against 15
    sizes = [8, 7, 6, 5, 4, 0]
    shares = equal_shares(sizes, 2)
    assert sorted(sum(sizes[place] for place in share) for share in shares) == [15, 15]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_keep_the_groups_of_each_optimizer_step(ranks):
    sizes = [[30, 30], [1, 1], [28, 2], [3, 4], [9, 9], [8, 8], [40, 1], [2, 2]]
    groups = make_groups(sizes, [5] * 8)
    shares = [
        balance_groups(groups[r::ranks], 8, interleaved(groups, r, ranks)) for r in range(ranks)
    ]
    ids = [[group.group_id for group in share] for share in shares]
    per_step = 4 // ranks
    for step, expected in enumerate(({0, 1, 2, 3}, {4, 5, 6, 7})):
        of_step = [group for share in ids for group in share[step * per_step :][:per_step]]
        assert {
            groups.index(next(g for g in groups if g.group_id == i)) for i in of_step
        } == expected
        assert len(of_step) == 4
    if ranks == 2:
        sums = [tokens(share) for share in shares]
        apart = [tokens(groups[r::ranks]) for r in range(ranks)]
        assert max(sums) - min(sums) < max(apart) - min(apart)


def test_groups_stay_if_an_optimizer_step_ends_within_one():
    groups = make_groups([[30, 30], [1, 1], [2, 2], [2, 2]], [5] * 4)
    own = groups[0::2]
    assert balance_groups(own, 6, interleaved(groups, 0, 2)) == own
    assert balance_groups(own, 4, interleaved(groups[:3], 0, 2)) == own  # of a user's own sampler


def test_one_rank_gathers_nothing():
    groups = make_groups([[3, 4], [1, 1]], [5] * 2)
    alone = SimpleNamespace(rank=0, world_size=1)
    assert balance_groups(groups, 4, alone) == groups
