from rewards import Score
from rewards.sandbox import ScoredText
from trainer.rollouts.collect import GroupRequest, score_completions
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
