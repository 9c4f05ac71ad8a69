"""Test of the reward on one problem before sampling."""

from rewards.sandbox import RewardPool, ScoringFailedError
from trainer.errors import shortened
from trainer.rollouts.collect import scoring_error
from trainer.types import Problem


def check_reward(rewards: RewardPool, problem: Problem) -> None:
    """Score the first problem's reference answer, to detect a reward function that raises or hangs.

    Raises:
        RewardError: scoring failed; names the text and the answer.
    """
    text = f"{problem.prefill}{problem.answer}"
    try:
        (scored,) = rewards.score([text], [problem.answer], [problem.columns])
        failure = scored.message if scored.status != "ok" else None
    except ScoringFailedError as error:
        failure = error.failure
    if failure is not None:
        text, answer = (shortened(repr(value), 60) for value in (text, problem.answer))
        where = f"reward.functions, text {text}, answer {answer}"
        raise scoring_error(
            f"the reward function failed on the first problem's reference answer: {failure}", where
        )
