"""Scoring of one real row before anything is sampled."""

from rewards.sandbox import RewardPool, ScoringFailedError
from trainer.errors import shortened
from trainer.rollouts.collect import scoring_error
from trainer.types import Problem


def check_reward(rewards: RewardPool, problem: Problem) -> None:
    """Score the first problem's own answer, so that a reward that raises or hangs is noticed at
    once.

    Raises:
        RewardError: there is no score; says for which text and answer.
    """
    text = f"{problem.prefill}{problem.answer}"
    try:
        (scored,) = rewards.score([text], [problem.answer], [problem.columns])
        failure = scored.message if scored.status != "ok" else None
    except ScoringFailedError as error:
        failure = str(error).partition("): ")[2]  # the one failure, without the count of failures
    if failure is not None:
        text, answer = (shortened(repr(value), 60) for value in (text, problem.answer))
        where = f"reward.functions, text {text}, answer {answer}"
        raise scoring_error(f"the reward fails on the first problem: {failure}", where)
