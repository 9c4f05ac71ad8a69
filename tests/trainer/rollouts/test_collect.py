import threading

import pytest

from rewards import Score
from rewards.sandbox import ScoredText, ScoringFailedError
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.errors import RewardError
from trainer.metrics.stopwatch import Stopwatch
from trainer.rollouts.collect import GroupRequest, collect_rollouts, score_completions
from trainer.rollouts.engine import Sample, SamplingParams
from trainer.types import Completion, Problem


class Scores:
    """Scores a completion by its length; an empty one times out."""

    def score(self, texts, answers):
        assert answers == ["A", "B", "B"]
        return [
            ScoredText(Score(float(len(text)), len(text) > 3, {"length": float(len(text))}), "ok")
            if text != "<"
            else ScoredText(Score(-2.0, False, {}, parsed=False), "timeout", "no score after 5 s")
            for text in texts
        ]


def test_every_score_stays_with_its_completion_and_group():
    requests = [
        GroupRequest(4, Problem("a", "", "<", "A", "test"), [1]),
        GroupRequest(7, Problem("b", "", "<", "B", "test"), [2, 3]),
    ]
    completions = [[Completion((9,), (0.0,), text, "stop") for text in group] for group in (["ab"], ["", "cde"])]
    groups = score_completions(requests, [[1, 2], [3]], completions, Scores())
    assert [group.group_id for group in groups] == [4, 7]
    assert [[r.completion.text for r in group.rollouts] for group in groups] == [["ab"], ["", "cde"]]
    assert [[r.reward for r in group.rollouts] for group in groups] == [[3.0], [-2.0, 4.0]]
    assert [r.prompt_ids for group in groups for r in group.rollouts] == [(1, 2), (3,), (3,)]
    late, right = groups[1].rollouts
    assert (late.scoring, late.scoring_message, late.parsed, late.correct) == (
        *("timeout", "no score after 5 s"),
        *(False, False),
    )
    assert (right.scoring, right.parsed, right.correct) == ("ok", True, True)
    assert right.reward_breakdown == {"length": 4.0}


class Engine:
    """Answers every prompt with one token."""

    def generate(self, prompts, seeds, params):
        return [[Sample((9,), (-0.5,), "length") for _ in row] for row in seeds]


class SlowScores:
    """Has no score before something else was done."""

    def __init__(self) -> None:
        self.done_meanwhile = threading.Event()

    def score(self, texts, answers):
        if not self.done_meanwhile.wait(60):
            raise ScoringFailedError("nothing was done meanwhile")
        return [ScoredText(Score(2.0, True, {}), "ok") for _ in texts]


def collected(rewards, meanwhile):
    requests = [GroupRequest(3, Problem("a", "p", "", "A", "test"), [1, 2])]
    params = SamplingParams(1.0, max_new_tokens=1)
    return collect_rollouts(Engine(), byte_tokenizer(), requests, params, rewards, Stopwatch(), meanwhile)


def test_other_work_is_done_while_completions_are_scored():
    rewards, seen = SlowScores(), []

    def meanwhile(groups):
        seen.extend(groups)
        rewards.done_meanwhile.set()

    [group], [unscored] = collected(rewards, meanwhile), seen
    assert [rollout.reward for rollout in group.rollouts] == [2.0, 2.0]
    assert [rollout.reward for rollout in unscored.rollouts] == [0.0, 0.0]
    assert unscored.group_id == group.group_id == 3
    for one, other in zip(group.rollouts, unscored.rollouts, strict=True):
        assert (one.prompt_ids, one.completion) == (other.prompt_ids, other.completion)


def test_errors_of_scoring_and_of_the_other_work_are_both_told():
    failing = SlowScores()
    failing.done_meanwhile.wait = lambda seconds: False
    with pytest.raises(RewardError, match="nothing was done"):
        collected(failing, lambda groups: None)
    rewards = SlowScores()

    def broken(groups):
        rewards.done_meanwhile.set()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        collected(rewards, broken)
