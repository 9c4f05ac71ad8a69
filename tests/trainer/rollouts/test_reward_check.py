import pytest

from rewards import Score
from rewards.sandbox import ScoredText, ScoringFailedError
from trainer.config.schema import TrainConfig, load_config
from trainer.errors import ConfigError, RewardError
from trainer.rollouts.reward_check import check_reward
from trainer.types import Problem

PROBLEM = Problem("1", "How much?", "<think>", "3", "test", columns={"numbers": [3]})


class Rewards:
    """Scoring processes that give one outcome, or fail in one way."""

    def __init__(self, outcome: ScoredText | Exception):
        self.outcome = outcome
        self.needed_columns: list[tuple[str, str]] = []
        self.asked: list[tuple[list[str], list[object]]] = []

    def score(self, texts, answers, rows):
        self.asked.append((texts, answers))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return [self.outcome]


def test_the_prefill_with_the_answer_is_scored_whatever_it_is_worth():
    rewards = Rewards(ScoredText(Score(-1.0, False, {}, parsed=False), "ok"))
    check_reward(rewards, TrainConfig(), [PROBLEM], {})
    assert rewards.asked == [(["<think>3"], ["3"])]


def test_a_failure_names_text_and_answer():
    rewards = Rewards(ScoredText(Score(0.0, False, {}), "timeout", "no score after 5 s"))
    with pytest.raises(RewardError) as refused:
        check_reward(rewards, TrainConfig(), [PROBLEM], {})
    assert str(refused.value).splitlines() == [
        "error: the reward fails on the first problem: no score after 5 s",
        "where: reward.functions, text '<think>3', answer '3'",
        "next:  repair the reward function, or raise reward.timeout_s or reward.memory_mb",
    ]


def test_the_one_failure_is_told_without_the_count_of_failures():
    failure = "scoring failed for 1 of 1 completions (the limit is 10%): ValueError: f(x): no x"
    with pytest.raises(RewardError) as refused:
        check_reward(Rewards(ScoringFailedError(failure)), TrainConfig(), [PROBLEM], {})
    assert refused.value.what == "the reward fails on the first problem: ValueError: f(x): no x"


def test_long_answers_are_shown_in_part():
    problem = Problem("1", "", "", {"solution": "x" * 200}, "test")
    with pytest.raises(RewardError) as refused:
        check_reward(Rewards(ScoredText(Score(0.0, False, {}), "error", "no")), TrainConfig(), [problem], {})
    *_, answer = refused.value.where.split(", answer ")
    assert answer == "{'solution': '" + "x" * 43 + "..."
    assert len(answer) == 60


@pytest.mark.parametrize(("column", "source"), [("colour", "problems.jsonl"), ("numbers", "dev.jsonl")])
def test_a_column_that_no_row_has_is_named_with_function_and_file(column, source):
    rewards = Rewards(RuntimeError("asked"))
    rewards.needed_columns = [("mine:exact", column)]
    config = load_config("tiny_kk", {"data.train": "problems.jsonl", "evaluation.sets": {"dev": "dev.jsonl"}})
    with pytest.raises(ConfigError) as refused:
        check_reward(rewards, config, [PROBLEM], {"dev": [Problem("2", "", "", "", "")]})
    assert refused.value.what.startswith(f"reward mine:exact asks for {column}, and no row has such a column")
    assert refused.value.where == source
