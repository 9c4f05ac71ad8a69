"""DAPO's dynamic sampling: problems whose completions all score alike are replaced by others."""

from collections.abc import Callable, Sequence

from trainer.parallel.ranks import Parallel
from trainer.rollouts.overlong import raw_reward
from trainer.types import RolloutGroup, SampledGroups

_MIN_SPREAD = 1e-6


def has_spread(rewards: Sequence[float]) -> bool:
    """Return whether a group's rewards differ, so that it has an advantage [arXiv:2503.14476,
    equation 11].

    A group of one is kept: it has no spread to lack. As SkyRL.
    """
    return len(rewards) == 1 or max(rewards) - min(rewards) > _MIN_SPREAD


def sample_with_spread(
    collect: Callable[[int, int], list[RolloutGroup]],
    wanted: int,
    max_rounds: int,
    parallel: Parallel,
) -> SampledGroups:
    """Sample until as many groups as wanted have spread, or for so many rounds.

    A later round samples as many problems as groups are missing. What is still missing after the
    last one is filled with groups without spread, so that the batch always has its size. Rewards
    are compared as they were before shaping. ``collect(first, count)`` gives this rank's share of
    the next ``count`` problems, numbered from ``first``. All ranks call this together; ``wanted``
    is a multiple of their number.
    """
    sampled: list[RolloutGroup] = []
    with_spread: list[RolloutGroup] = []
    silent: list[RolloutGroup] = []
    number = 0
    for _ in range(max_rounds):
        missing = wanted - len(with_spread)
        count = -(-missing // parallel.world_size) * parallel.world_size
        of_rank = collect(number, count)
        number += count
        sampled += of_rank
        for group in parallel.gather(of_rank):
            varied = has_spread([raw_reward(rollout) for rollout in group.rollouts])
            (with_spread if varied else silent).append(group)
        if len(with_spread) >= wanted:
            break
    chosen = [*with_spread, *silent][:wanted]
    return SampledGroups(
        chosen[parallel.rank :: parallel.world_size], sampled, dropped=number - wanted
    )
