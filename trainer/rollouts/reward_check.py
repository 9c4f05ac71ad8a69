"""Scoring of one real row before anything is sampled."""

from rewards.sandbox import RewardPool, ScoringFailedError
from trainer.config.schema import RewardConfig
from trainer.errors import RewardError
from trainer.types import Problem


def check_reward(rewards: RewardPool, problem: Problem, config: RewardConfig) -> None:
    """Score a problem's own answer, so that a reward that raises or hangs is noticed at once.

    Args:
        rewards: the scoring processes.
        problem: one of those to train on.
        config: a ``max_failure_rate`` of 1 accepts any failure.

    Raises:
        RewardError: there is no score; says for which text and answer.
    """
    if config.max_failure_rate == 1:
        return
    text = f"{problem.prefill}{problem.answer}"
    try:
        (scored,) = rewards.score([text], [problem.answer])
        failure = scored.message if scored.status != "ok" else None
    except ScoringFailedError as error:
        failure = str(error).partition("): ")[2]  # the one failure, without the count of failures
    if failure is not None:
        raise RewardError(
            f"the reward fails on the first problem: {failure}",
            f"reward.functions, text {_short(text)}, answer {_short(problem.answer)}",
            "repair the function, or raise reward.timeout_s or reward.memory_mb",
        )


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
