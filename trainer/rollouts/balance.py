"""Exchange of rollout groups between ranks, so that all ranks train on about the same number of
tokens.

Ranks sample equal numbers of groups, but not of tokens, and in an update all of them wait for the
rank with the most tokens. Whole groups move, and only within their update batch: each optimizer
step uses the same completions as before, and a group's advantages can be computed without other
ranks.
"""

from collections.abc import Sequence

from trainer.parallel.ranks import Parallel
from trainer.types import RolloutGroup


def balance_groups(
    groups: Sequence[RolloutGroup], update_batch_size: int, parallel: Parallel
) -> list[RolloutGroup]:
    """Return the groups that this rank trains on, as many as it has sampled. Collective.

    ``update_batch_size`` is the number of completions of one optimizer step, over all ranks. The
    groups stay where they are if they cannot be divided equally among the ranks, or if a rank's
    part of the update batch would end within a group.
    """
    ranks = parallel.world_size
    if ranks == 1:
        return list(groups)
    everyone = parallel.gather(list(groups))  # in the order of the problems
    group_size = len(everyone[0].rollouts)
    if len(everyone) % ranks or update_batch_size % (ranks * group_size):
        return list(groups)
    own = []
    groups_per_update = update_batch_size // group_size
    for start in range(0, len(everyone), groups_per_update):
        of_update = everyone[start : start + groups_per_update]
        share = equal_shares([_tokens(group) for group in of_update], ranks)[parallel.rank]
        own += [of_update[place] for place in share]
    return own


def equal_shares(sizes: Sequence[int], shares: int) -> list[list[int]]:
    """Return the indices of ``sizes`` in each share, in ascending order: equally many indices per
    share, with about equal sums. ``shares`` must divide the number of sizes.

    The sizes are assigned largest first, each to the share that is not full and has the smallest
    sum. Then the largest share exchanges an index with another share as long as that lowers the
    larger of the two sums.
    """
    room = len(sizes) // shares
    places: list[list[int]] = [[] for _ in range(shares)]
    sums = [0] * shares
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        open_shares = [share for share in range(shares) if len(places[share]) < room]
        smallest = min(open_shares, key=lambda share: sums[share])
        places[smallest].append(place)
        sums[smallest] += sizes[place]
    while _improve(sizes, places):
        pass
    return [sorted(share) for share in places]


def _improve(sizes: Sequence[int], places: list[list[int]]) -> bool:
    """Make the best exchange of indices between the largest share and another one; return False if
    no exchange helps.
    """
    sums = [sum(sizes[place] for place in share) for share in places]
    largest = max(range(len(places)), key=lambda share: sums[share])
    best = (0, 0, 0, 0)
    for other in range(len(places)):
        gap = sums[largest] - sums[other]
        for i, mine in enumerate(places[largest]):
            for j, theirs in enumerate(places[other]):
                moved = sizes[mine] - sizes[theirs]
                # reduction of the larger of the two sums
                best = max(best, (min(moved, gap - moved), other, i, j))
    gain, other, i, j = best
    if gain <= 0:
        return False
    places[largest][i], places[other][j] = places[other][j], places[largest][i]
    return True


def _tokens(group: RolloutGroup) -> int:
    """Return the number of tokens of a group's rows, prompts included."""
    return sum(
        len(rollout.prompt_ids) + len(rollout.completion.token_ids) for rollout in group.rollouts
    )
