"""DAPO's dynamic sampling: zero-variance groups are replaced by groups of other problems."""

from collections.abc import Callable

from trainer.algorithm.batching import without_failures
from trainer.parallel.ranks import Parallel
from trainer.rollouts.overlong import raw_reward
from trainer.rules.groups import has_varied_rewards
from trainer.types import RolloutGroup, SampledGroups


def sample_until_varied(
    collect: Callable[[int, int], list[RolloutGroup]],
    wanted: int,
    max_rounds: int,
    parallel: Parallel,
) -> SampledGroups:
    """Sample until ``wanted`` groups have differing rewards [arXiv:2503.14476, equation 11], in at
    most ``max_rounds`` rounds. A group of size 1 is always kept, as in SkyRL.

    Each later round samples as many problems as groups are missing, rounded up to a multiple of the
    number of ranks. After the last round, zero-variance groups fill the batch, so its size is
    constant. Rewards are compared before the overlong penalty. ``collect(first, count)`` samples
    this rank's share of the next ``count`` problems, numbered from ``first``. Collective: all ranks
    must call it, and ``wanted`` must be a multiple of their number. Each rank gets its share of the
    chosen groups and the groups that it sampled; ``dropped`` counts the groups of all ranks.
    """
    sampled: list[RolloutGroup] = []
    with_reward_variance: list[RolloutGroup] = []
    zero_variance: list[RolloutGroup] = []
    number = 0
    for _ in range(max_rounds):
        missing = wanted - len(with_reward_variance)
        count = -(-missing // parallel.world_size) * parallel.world_size
        local_groups = collect(number, count)
        number += count
        sampled += local_groups
        for group in parallel.gather(local_groups):
            varied = has_varied_rewards([raw_reward(each) for each in without_failures(group)])
            (with_reward_variance if varied else zero_variance).append(group)
        if len(with_reward_variance) >= wanted:
            break
    chosen = [*with_reward_variance, *zero_variance][:wanted]
    return SampledGroups(
        chosen[parallel.rank :: parallel.world_size], sampled, dropped=number - wanted
    )
