from tests.trainer.algorithm.batches import make_groups
from trainer.config.reward import RewardConfig
from trainer.rollouts.overlong import apply_overlong_penalty, raw_reward


def test_the_punishment_is_a_part_of_the_reward_and_changes_nothing_else():
    groups = make_groups([[5, 9], [10, 8]], [3, 4])
    config = RewardConfig(overlong_buffer=4, overlong_penalty=2.0)
    punished = [r for group in apply_overlong_penalty(groups, 10, config) for r in group.rollouts]
    assert [r.reward for r in punished] == [3.0, -1.0 - 1.5, 3.0 - 2.0, -1.0 - 1.0]
    assert [r.reward_breakdown["overlong"] for r in punished] == [0.0, -1.5, -2.0, -1.0]
    assert [raw_reward(r) for r in punished] == [3.0, -1.0, 3.0, -1.0]
    assert [r.correct for r in punished] == [True, False, True, False]
