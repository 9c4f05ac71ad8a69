import pytest

from rewards import Score
from rewards.sandbox import ScoredText, ScoringFailedError
from trainer.errors import RewardError
from trainer.rollouts.reward_check import check_reward
from trainer.types import Problem

PROBLEM = Problem("1", "How much?", "<think>", "3", "test")


class Rewards:
    """Scoring processes that give one outcome, or fail in one way."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.asked = []

    def score(self, texts, answers, rows):
        self.asked.append((texts, answers))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return [self.outcome]


def test_the_prefill_with_the_answer_is_scored_whatever_it_is_worth():
    rewards = Rewards(ScoredText(Score(-1.0, False, {}, parsed=False), "ok"))
    check_reward(rewards, PROBLEM)
    assert rewards.asked == [(["<think>3"], ["3"])]


def test_a_failure_names_text_and_answer():
    rewards = Rewards(ScoredText(Score(0.0, False, {}), "timeout", "no score after 5 s"))
    with pytest.raises(RewardError) as refused:
        check_reward(rewards, PROBLEM)
    assert str(refused.value).splitlines() == [
        "error: the reward fails on the first problem: no score after 5 s",
        "where: reward.functions, text '<think>3', answer '3'",
        "next:  name a reward for such answers, repair it, or raise reward.timeout_s or "
        "reward.memory_mb",
    ]


def test_the_one_failure_is_told_without_the_count_of_failures():
    failure = "scoring failed for 1 of 1 completions (the limit is 10%): ValueError: f(x): no x"
    with pytest.raises(RewardError) as refused:
        check_reward(Rewards(ScoringFailedError(failure)), PROBLEM)
    assert refused.value.what == "the reward fails on the first problem: ValueError: f(x): no x"


def test_long_answers_are_shown_in_part():
    problem = Problem("1", "", "", {"solution": "x" * 200}, "test")
    with pytest.raises(RewardError) as refused:
        check_reward(Rewards(ScoredText(Score(0.0, False, {}), "error", "no")), problem)
    *_, answer = refused.value.where.split(", answer ")
    assert answer == "{'solution': '" + "x" * 43 + "..."
    assert len(answer) == 60
