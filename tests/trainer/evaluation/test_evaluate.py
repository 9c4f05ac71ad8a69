import pytest

from loptune.declared_metrics import declaration
from rewards import Score
from rewards.sandbox import ScoredText
from tests.refusals import setting_refused
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.config.evaluation import EvaluationConfig
from trainer.config.schema import TrainConfig
from trainer.evaluation.evaluate import (
    completion_rows,
    composite,
    correct_by_problem,
    evaluate,
    evaluation_metrics,
)
from trainer.parallel.ranks import Parallel
from trainer.types import Completion, Problem, Rollout


def rollout(group, correct, difficulty="2", source="a", tokens=3, **scored):
    problem = Problem(f"p{group}", "question", "", "answer", source, difficulty)
    finish = "length" if tokens > 5 else "stop"
    completion = Completion((7,) * tokens, (0.0,) * tokens, finish, "text")
    return Rollout(
        group, problem, (1,), completion, 3.0 if correct else -1.0, {}, correct, **scored
    )


# Problem 0 (difficulty 2): 1 of 2 correct; problem 1 (difficulty 10): none; problem 2 (difficulty
# 10): both.
FIRST = [
    rollout(0, True),
    rollout(0, False, tokens=9, scoring="timeout"),
    rollout(1, False, "10", scoring="error"),
    rollout(1, False, "10", parsed=False),
    rollout(2, True, "10", "b"),
    rollout(2, True, "10", "b"),
]
SECOND = [rollout(0, False), rollout(0, False)]
SETS = {"dev": FIRST, "other": SECOND}


def test_metrics_of_several_sets_by_hand():
    metrics = evaluation_metrics(SETS)
    assert metrics == pytest.approx(
        {
            "eval/accuracy": 3 / 6,
            "eval/pass_at_k": (1 + 0 + 1) / 3,
            "eval/reward": (3 * 3 - 3) / 6,
            "eval/completion_length": (5 * 3 + 9) / 6,
            "eval/truncated": 1 / 6,
            "eval/scoring_failures": 2 / 8,
            "eval/accuracy/2": 1 / 2,
            "eval/accuracy/10": 2 / 4,
            "eval/accuracy/other": 0.0,
            "eval/reward/other": -1.0,
            "eval/completion_length/other": 3.0,
            "eval/truncated/other": 0.0,
            "eval/pass_at_k/other": 0.0,
        }
    )
    for name in metrics:
        declaration(name)


def test_one_completion_per_problem_has_no_pass_at_k():
    single = {"dev": [FIRST[0], FIRST[2]]}
    assert "eval/pass_at_k" not in evaluation_metrics(single)


def test_pass_at_k_of_fewer_than_all_completions_by_hand():
    # of problem 0 one of two is correct, of problem 1 none, of problem 2 both
    metrics = evaluation_metrics(SETS, {"dev": [1, 2]})
    assert metrics["eval/pass_at/1"] == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert metrics["eval/pass_at/2"] == metrics["eval/pass_at_k"]
    assert not any(name.endswith("/other") and "pass_at/" in name for name in metrics)
    for name in metrics:
        declaration(name)


def test_a_set_with_fewer_completions_keeps_no_larger_k():
    sampled = {"temperature": 1.0, "completions_per_problem": 8, "pass_at_k": [1, 4]}
    few = {"source": "a.parquet", "completions_per_problem": 2}
    evaluation = EvaluationConfig(sets={"math": "m.parquet", "few": few}, **sampled)
    assert evaluation.of_set("math").pass_at_k == [1, 4]
    assert evaluation.of_set("few").pass_at_k == []
    with setting_refused("pass-at-k-too-large", names=("few",)):
        EvaluationConfig(sets={"few": {**few, "pass_at_k": [4]}}, **sampled)


def test_the_longest_completion_is_that_of_the_longest_set():
    long = {"source": "a.parquet", "max_new_tokens": 300}
    evaluation = {"sets": {"dev": "m.parquet", "long": long}, "max_new_tokens": 200}
    config = TrainConfig(rollout={"max_new_tokens": 100}, evaluation=evaluation)
    assert config.longest_completion == 300
    assert config.evaluation.of_set("dev").max_new_tokens == 200
    assert TrainConfig(rollout={"max_new_tokens": 100}).longest_completion == 100


def test_a_set_may_be_sampled_otherwise_than_the_others():
    evaluation = EvaluationConfig(
        sets={
            "math": "m.parquet",
            "aime": {"source": "a.parquet", "temperature": 1.0, "completions_per_problem": 16},
            "amc": {"source": "b.parquet", "temperature": 1.0, "completions_per_problem": 4},
        }
    )
    sets = [evaluation.of_set(name) for name in evaluation.sets]
    assert [(section.temperature, section.completions_per_problem) for section in sets] == [
        (0, 1),
        (1, 16),
        (1, 4),
    ]


def test_problems_are_told_apart_by_their_group():
    correct, completions = correct_by_problem(FIRST)
    assert correct.tolist() == [1, 0, 2]
    assert completions.tolist() == [2, 2, 2]
    assert [row["problem"] for row in completion_rows(SETS, 3)] == ["p0", "p1", "p2"]
    assert [row["problem"] for row in completion_rows(SETS, 4)] == ["p0", "p0", "p1", "p2"]
    assert list(completion_rows(SETS, 1)[0])[:3] == ["prompt", "completion", "reward"]


class TwoRanks(Parallel):
    """Rank 0 of two; what rank 1 found is given."""

    world_size = 2

    def __init__(self, rank, theirs=()):
        super().__init__()
        self.rank = rank
        self.theirs = list(theirs)
        self.mine = []

    def gather(self, items):
        self.mine += items
        return [*items, *self.theirs]


class Echo:
    """An engine that answers every prompt with its first token, and rewards that call an even token
    right.
    """

    def __init__(self):
        self.seeds = {}

    def generate(self, prompts, seeds, params):
        self.seeds |= {
            tuple(prompt): tuple(of_prompt)
            for prompt, of_prompt in zip(prompts, seeds, strict=True)
        }
        return [
            [Completion((prompt[0],), (0.0,), "stop") for _ in of_prompt]
            for prompt, of_prompt in zip(prompts, seeds, strict=True)
        ]

    def score(self, texts, answers, rows):
        return [
            ScoredText(Score(1.0, True, {}) if int(t) % 2 == 0 else Score(0.0, False, {}), "ok")
            for t in texts
        ]


def measure(parallel, engine, count=2):
    problems = [Problem(f"p{i}", str(i), "", "", "s", "") for i in range(5)]
    evaluation = EvaluationConfig(completions_per_problem=count, temperature=1.0)
    config = TrainConfig(evaluation=evaluation, seed=3)
    return evaluate(engine, byte_tokenizer(), {"dev": engine}, {"dev": problems}, config, parallel)


def test_two_ranks_find_what_one_finds():
    alone_engine = Echo()
    zero_engine = Echo()
    one_engine = Echo()
    alone = measure(Parallel(), alone_engine)
    rank_one = TwoRanks(1)
    measure(rank_one, one_engine)
    together = measure(TwoRanks(0, rank_one.mine), zero_engine)
    assert together == alone
    assert alone.metrics["eval/accuracy"] == pytest.approx(3 / 5)
    assert alone_engine.seeds == zero_engine.seeds | one_engine.seeds
    assert len({seed for seeds in alone_engine.seeds.values() for seed in seeds}) == 10


def test_more_completions_keep_the_seeds_of_the_first():
    few = Echo()
    many = Echo()
    measure(Parallel(), few, count=1)
    measure(Parallel(), many, count=3)
    assert all(many.seeds[prompt][:1] == seeds for prompt, seeds in few.seeds.items())


def test_composite_is_the_weighted_mean_of_accuracies_and_pass_at_k():
    # dev: accuracy 3/6, pass@2 2/3; other: accuracy 0
    assert composite(SETS, {}, {"dev": 1.0, "other": 1.0}) == pytest.approx(1 / 4)
    weights = {"dev": 2.0, "dev/pass@2": 1.0, "other": 1.0}
    assert composite(SETS, {}, weights) == pytest.approx((2 / 2 + 2 / 3) / 4)
    assert composite(SETS, {"dev": (1,)}, {"dev/pass@1": 1.0}) == pytest.approx(1 / 2)


def test_composite_is_a_metric_of_an_evaluation():
    problems = [Problem(f"p{i}", str(i), "", "", "s", "") for i in range(5)]
    sets = {"even": problems[::2], "all": problems}
    evaluation = EvaluationConfig.model_validate(
        {"sets": {"even": {}, "all": {}}, "composite": {"even": 1.0, "all": 3.0}}
    )
    engine = Echo()
    pools = dict.fromkeys(sets, engine)
    config = TrainConfig(evaluation=evaluation)
    result = evaluate(engine, byte_tokenizer(), pools, sets, config, Parallel())
    assert result.metrics["eval/composite"] == pytest.approx((1.0 + 3 * 3 / 5) / 4)
    declaration("eval/composite")


@pytest.mark.parametrize(
    ("composite", "code"),
    [
        ({"nowhere": 1.0}, "composite-unknown-set"),
        ({"dev/pass@4": 1.0}, "composite-unmeasured"),
        ({"dev": 0.0}, "all-weights-zero"),
    ],
)
def test_composites_that_cannot_be_measured_are_refused(composite, code):
    with setting_refused(code):
        EvaluationConfig(composite=composite, completions_per_problem=2)
