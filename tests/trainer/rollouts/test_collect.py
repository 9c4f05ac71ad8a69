import math

from rewards import Score
from rewards.sandbox import ScoredText
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.rollouts.collect import GroupRequest, sample_groups, score_groups
from trainer.rollouts.engine import SamplingParams
from trainer.types import Completion, Problem, Rollout, RolloutGroup


class Scores:
    """Scores a completion by its length; an empty one times out."""

    failure_reported = False

    def score(self, texts, answers, rows):
        assert answers == ["A", "B", "B"]
        return [
            ScoredText(Score(float(len(text)), len(text) > 3, {"length": float(len(text))}), "ok")
            if text != "<"
            else ScoredText(Score(-2.0, False, {}, parsed=False), "timeout", "no score after 5 s")
            for text in texts
        ]


def group_of(number, answer, *texts):
    problem = Problem(str(number), "", "<", answer, "test")
    completions = [Completion((9,), (0.0,), "stop", text) for text in texts]
    return RolloutGroup(
        number, [Rollout(number, problem, (number, 2), completion) for completion in completions]
    )


def test_every_score_stays_with_its_completion_and_group(caplog):
    unscored = [group_of(4, "A", "ab"), group_of(7, "B", "", "cde")]
    scores = Scores()
    groups = score_groups(unscored, scores)
    score_groups(unscored, scores)  # told once
    (told,) = caplog.messages
    assert "1 of 3 completions" in told and "no score after 5 s" in told
    assert [group.group_id for group in groups] == [4, 7]
    assert [[r.completion.text for r in group.rollouts] for group in groups] == [
        ["ab"],
        ["", "cde"],
    ]
    assert [[r.reward for r in group.rollouts] for group in groups] == [[3.0], [-2.0, 4.0]]
    assert [r.prompt_ids for group in groups for r in group.rollouts] == [(4, 2), (7, 2), (7, 2)]
    late, right = groups[1].rollouts
    assert (late.scoring, late.parsed, late.correct) == ("timeout", False, False)
    assert late.scoring_error == "no score after 5 s"
    assert (right.scoring, right.parsed, right.correct) == ("ok", True, True)
    assert right.reward_breakdown == {"length": 4.0}


class Engine:
    """Answers every prompt with its seeds."""

    def generate(self, prompts, seeds, params):
        return [[Completion((seed,), (-0.5,), "length") for seed in row] for row in seeds]


def test_groups_are_sampled_by_request_and_have_no_reward_yet():
    requests = [
        GroupRequest(3, Problem("a", "p", "", "A", "test"), [71, 72]),
        GroupRequest(5, Problem("b", "q", "", "B", "test"), [73]),
    ]
    groups = sample_groups(
        Engine(), byte_tokenizer(), requests, SamplingParams(1.0, max_new_tokens=1)
    )
    assert [
        (group.group_id, [r.completion.token_ids for r in group.rollouts]) for group in groups
    ] == [(3, [(71,), (72,)]), (5, [(73,)])]
    assert [r.problem.problem_id for group in groups for r in group.rollouts] == ["a", "a", "b"]
    assert all(math.isnan(r.reward) for group in groups for r in group.rollouts)
