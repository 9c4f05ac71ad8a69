import pytest

from loptune.errors import RewardError
from rewards import Score
from rewards.sandbox import ScoredText, ScoringFailedError
from tests.refusals import refused
from trainer.config.reward import RewardConfig
from trainer.config.schema import TrainConfig
from trainer.rollouts.build import build_rewards
from trainer.rollouts.prepared import (
    build_reward_pools,
    check_answers,
    check_reward,
    reward_key,
    sets_of_reward,
)
from trainer.types import Problem

PROBLEM = Problem("1", "How much?", "<think>", "3", "test")


BROKEN = RewardConfig(functions={"tests.rewards.own_rewards:breaks": 1.0})


class Rewards:
    """Scoring processes that give one outcome, or fail in one way."""

    withheld = ()

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
    check_reward(rewards, PROBLEM, BROKEN)
    assert rewards.asked == [(["<think>3"], ["3"])]


def test_a_failure_names_text_and_answer():
    rewards = Rewards(ScoredText(Score(0.0, False, {}), "timeout", "no score after 5 s", "time"))
    with refused("scoring-failed", RewardError) as caught:
        check_reward(rewards, PROBLEM, BROKEN)
    assert caught.value.what.endswith(": no score after 5 s")
    assert caught.value.where == "reward.functions, text '<think>3', answer '3'"
    assert "reward.timeout_s" in caught.value.hint
    assert "reward.memory_mb" not in caught.value.hint


def test_the_one_failure_is_told_without_the_count_of_failures():
    failure = ScoringFailedError("1 of 1 completions failed", failure="ValueError: f(x): no x")
    with refused("scoring-failed", RewardError) as caught:
        check_reward(Rewards(failure), PROBLEM, BROKEN)
    assert caught.value.what.endswith(": ValueError: f(x): no x")
    assert "1 of 1" not in caught.value.what


@pytest.mark.parametrize(
    ("function", "changes", "named"),
    [
        ("loads_a_library", {"memory_mb": 64}, "reward.memory_mb"),
        ("asks_a_judge", {}, "reward.environment='[A_JUDGES_KEY]'"),
        ("asks_a_judge_itself", {}, "reward.environment='[A_JUDGES_KEY]'"),
        ("breaks", {}, "fix the reward function"),
    ],
)
def test_the_hint_names_the_limit_that_is_the_cause(function, changes, named, monkeypatch):
    monkeypatch.setenv("A_JUDGES_KEY", "sk-x")
    config = RewardConfig(functions={f"tests.rewards.own_rewards:{function}": 1.0}, **changes)
    with build_rewards(config, 1.0) as rewards, refused("scoring-failed", RewardError) as caught:
        check_reward(rewards, PROBLEM, config)
    assert named in caught.value.hint


def test_a_key_that_a_reward_silently_does_without_is_reported(monkeypatch, caplog):
    monkeypatch.setenv("A_JUDGES_KEY", "sk-x")
    functions = {"tests.rewards.own_rewards:does_without": 1.0}
    for environment, warnings in (([], 1), (["A_JUDGES_KEY"], 0)):
        config = RewardConfig(functions=functions, environment=environment)
        caplog.clear()
        with build_rewards(config, 1.0) as rewards:
            check_reward(rewards, PROBLEM, config)
        assert len([text for text in caplog.messages if "A_JUDGES_KEY" in text]) == warnings


def test_long_answers_are_shown_in_part():
    problem = Problem("1", "", "", {"solution": "x" * 200}, "test")
    with refused("scoring-failed", RewardError) as caught:
        check_reward(Rewards(ScoredText(Score(0.0, False, {}), "error", "no")), problem, BROKEN)
    *_, answer = caught.value.where.split(", answer ")
    assert answer == "{'solution': '" + "x" * 43 + "..."
    assert len(answer) == 60


def rows(*answers):
    return [
        Problem(str(number), "", "", answer, "test", place=f"a.jsonl, row {number}, column answer")
        for number, answer in enumerate(answers, start=1)
    ]


@pytest.mark.parametrize(
    ("reward", "answers"),
    [
        ("last_number", ["twelve", [], {"a": 1}]),
        ("math", [{"a": 1}, [], None]),
        ("knights_knaves", ["12", 3]),
    ],
)
def test_data_with_only_impossible_answers_are_refused(reward, answers):
    with refused("answers-never-right", key="reward.functions") as caught:
        check_answers({reward: 1.0, "format": 0.1}, rows(*answers))
    assert caught.value.where.startswith("a.jsonl, row 1, column answer")


def test_rows_that_can_never_be_right_are_named(caplog):
    check_answers({"last_number": 1.0}, rows("12", "twelve", "1,234", []))
    (told,) = caplog.messages
    assert "2 of 4 reference answers" in told
    assert "row 2" in told and "row 4" in told and "row 3" not in told


def test_answers_that_hold_more_than_the_answer_are_counted(caplog):
    check_answers({"math": 1.0}, rows("3 * 4 = 12\n#### 12", "12", "Answer: 12"))
    (told,) = caplog.messages
    assert "2 of 3 reference answers" in told and "'12'" in told and "row 1" in told


@pytest.mark.parametrize(
    ("functions", "answers"),
    [
        ({"math": 1.0}, ["12", r"\frac{1}{2}", 3, ["1", "2"], "x = 5", "(1, 2)", "A"]),
        ({"last_number": 1.0}, ["12", 3, -4.5, "1,234"]),
        ({"format": 1.0}, ["anything", None]),
        ({"knights_knaves": 1.0}, ["(1) Zoey is a knight\n(2) Noah is a knave"]),
        ({"no.such.module:f": 2.0, "math": 1.0}, [{"a": 1}]),  # own functions are not called
    ],
)
def test_usable_answers_are_accepted_without_a_word(functions, answers, caplog):
    check_answers(functions, rows(*answers))
    assert caplog.messages == []


def test_a_set_whose_answers_can_never_be_right_is_refused():
    with refused("answers-never-right", key="reward.functions"):
        check_answers({"last_number": 1.0}, rows("12"), {"dev": rows("twelve")})


def test_the_first_usable_answer_is_returned_for_the_next_check():
    problems = rows("twelve", "12")
    assert check_answers({"last_number": 1.0}, problems) is problems[1]
    assert check_answers({"my:reward": 1.0}, problems) is problems[0]


def test_each_reward_of_an_evaluation_set_has_one_pool():
    changes = {
        "reward": {"functions": {"math": 1.0}},
        "evaluation": {
            "sets": {
                "same": {"reward": {"math": 1.0}},
                "last": {"reward": {"last_number": 1.0}},
                "also_last": {"reward": {"last_number": 1.0}},
                "default": {},
            }
        },
    }
    config = TrainConfig.model_validate(changes)
    pools = build_reward_pools(config, max_failure_rate=1.0)
    try:
        assert len(pools) == 2
        texts = {name: pools[reward_key(config.reward_of_set(name))] for name in ("same", "last")}
        scores = {
            name: pool.score(["I get 1 and then 7 by \\boxed{1}, or 3"], ["3"])[0].score.correct
            for name, pool in texts.items()
        }
    finally:
        for pool in pools.values():
            pool.close()
    assert scores == {"same": False, "last": True}
    assert list(sets_of_reward(config, {name: [] for name in config.evaluation.sets})) == [
        "same",
        "default",
    ]
