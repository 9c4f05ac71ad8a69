from rewards import Score
from rewards.sandbox import ScoredText, ScoringFailedError
from tests.refusals import refused
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
    with refused("scoring-failed", RewardError) as caught:
        check_reward(rewards, PROBLEM)
    assert caught.value.what.endswith(": no score after 5 s")
    assert caught.value.where == "reward.functions, text '<think>3', answer '3'"
    assert {"reward.timeout_s", "reward.memory_mb"} <= set(caught.value.hint.split())


def test_the_one_failure_is_told_without_the_count_of_failures():
    failure = ScoringFailedError("1 of 1 completions failed", failure="ValueError: f(x): no x")
    with refused("scoring-failed", RewardError) as caught:
        check_reward(Rewards(failure), PROBLEM)
    assert caught.value.what.endswith(": ValueError: f(x): no x")
    assert "1 of 1" not in caught.value.what


def test_long_answers_are_shown_in_part():
    problem = Problem("1", "", "", {"solution": "x" * 200}, "test")
    with refused("scoring-failed", RewardError) as caught:
        check_reward(Rewards(ScoredText(Score(0.0, False, {}), "error", "no")), problem)
    *_, answer = caught.value.where.split(", answer ")
    assert answer == "{'solution': '" + "x" * 43 + "..."
    assert len(answer) == 60
