"""DAPO's soft overlong penalty."""

from collections.abc import Sequence
from dataclasses import replace

from rewards import OVERLONG_PART
from trainer.config.reward import RewardConfig
from trainer.types import Rollout, RolloutGroup


def overlong_penalty(length: int, max_new_tokens: int, buffer: int) -> float:
    """Return ``clamp((length - (max_new_tokens - buffer)) / buffer, 0, 1)`` [arXiv:2503.14476,
    equation 13]; all lengths in tokens.
    """
    return min(1.0, max(0.0, (length - (max_new_tokens - buffer)) / buffer))


def raw_reward(rollout: Rollout) -> float:
    """Return the reward without the overlong penalty."""
    return rollout.reward - rollout.reward_breakdown.get(OVERLONG_PART, 0.0)


def apply_overlong_penalty(
    groups: Sequence[RolloutGroup], max_new_tokens: int, config: RewardConfig
) -> list[RolloutGroup]:
    """Subtract the overlong penalty, which is largest at ``max_new_tokens`` tokens, from every
    reward, and record it in the breakdown.

    ``correct`` does not change. The buffer must be positive.
    """

    def punished(rollout: Rollout) -> Rollout:
        length = len(rollout.completion.token_ids)
        penalty = -config.overlong_penalty * overlong_penalty(
            length, max_new_tokens, config.overlong_buffer
        )
        breakdown = {**rollout.reward_breakdown, OVERLONG_PART: penalty}
        return replace(rollout, reward=rollout.reward + penalty, reward_breakdown=breakdown)

    return [
        replace(group, rollouts=[punished(rollout) for rollout in group.rollouts])
        for group in groups
    ]
