from dataclasses import replace

import pytest

from tests.trainer.algorithm.batches import make_groups
from trainer.parallel.ranks import Parallel
from trainer.rollouts.dynamic_sampling import sample_until_varied


class Source:
    """Numbered groups, of which only those named have rewards that differ."""

    def __init__(self, varied):
        self.varied = varied
        self.asked = []

    def __call__(self, first, count):
        self.asked.append((first, count))
        groups = []
        for number in range(first, first + count):
            rewards = (1.0, 0.0) if number in self.varied else (1.0, 1.0)
            (group,) = make_groups([[2, 3]], [4], rewards=rewards)
            groups.append(replace(group, group_id=number))
        return groups


def numbers(groups):
    return [group.group_id for group in groups]


def test_later_rounds_ask_for_what_is_missing():
    source = Source({0, 4, 6, 7})
    sample = sample_until_varied(source, wanted=4, max_rounds=5, parallel=Parallel())
    assert source.asked == [(0, 4), (4, 3), (7, 1)]
    assert numbers(sample.groups) == [0, 4, 6, 7]
    assert numbers(sample.sampled) == list(range(8))
    assert sample.dropped == 4


def test_after_the_last_round_the_batch_is_filled_with_what_has_no_spread():
    sample = sample_until_varied(Source({2}), wanted=3, max_rounds=2, parallel=Parallel())
    assert numbers(sample.groups) == [2, 0, 1]
    assert sample.dropped == 2


class OneOfTwo(Parallel):
    """A rank of two; the other one's groups come from the same source."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.world_size = 2
        self.others = []

    def gather(self, items):
        mine, theirs = (items, self.others) if self.rank == 0 else (self.others, items)
        return [group for pair in zip(mine, theirs, strict=True) for group in pair]


def test_ranks_agree_on_the_groups_and_share_them():
    shares = []
    for rank in (0, 1):
        parallel = OneOfTwo(rank)
        source = Source({1, 2, 4, 5})

        def collect(first, count, parallel=parallel, source=source, rank=rank):
            groups = source(first, count)
            parallel.others = groups[1 - rank :: 2]
            return groups[rank::2]

        sample = sample_until_varied(collect, wanted=4, max_rounds=3, parallel=parallel)
        assert source.asked == [(0, 4), (4, 2)]
        shares.append(numbers(sample.groups))
    assert shares == [[1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("rewards", "scoring", "dropped"),
    [
        ((0.0, 5e-7), ("ok", "ok"), 0),  # a small difference has advantages
        ((1000.0, 1000.0001), ("ok", "ok"), 1),  # a rounding error has none
        ((0.0, 1.0), ("error", "ok"), 1),  # the failed completion gets the mean reward
        ((1.0,), ("ok",), 0),
    ],
)
def test_groups_without_advantages_are_replaced(rewards, scoring, dropped):
    def collect(first, count):
        (group,) = make_groups([[2] * len(rewards)], [4], rewards=rewards)
        scored = []
        for rollout, outcome in zip(group.rollouts, scoring, strict=True):
            scored.append(replace(rollout, scoring=outcome))
        return [replace(group, rollouts=scored)]

    sample = sample_until_varied(collect, wanted=1, max_rounds=2, parallel=Parallel())
    assert sample.dropped == dropped
