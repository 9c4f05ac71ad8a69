import math
import threading

from loptune.progress import ProgressReport
from rewards import Score
from rewards.sandbox import ScoredText
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.metrics.step import Stopwatch
from trainer.parallel.ranks import Parallel
from trainer.problems.sampler import ProblemSampler
from trainer.rollouts.collect import GroupRequest, RolloutSampler, sample_groups, score_groups
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


PROBLEMS = [Problem(name, name, "", name, "test") for name in "abcdef"]


class NotingEngine:
    """Answers every prompt with one token and notes what is asked of it."""

    def __init__(self):
        self.events = []

    def generate(self, prompts, seeds, params):
        self.events.append(byte_tokenizer().decode([prompt[0] for prompt in prompts]))
        return [[Completion((9,), (-0.5,), "length") for _ in row] for row in seeds]

    def sleep(self):
        self.events.append("sleep")

    def wake(self):
        self.events.append("wake")

    def sync_weights(self, model):
        self.events.append("sync")

    def close(self):
        pass


class Rewards:
    """Scores when it is allowed to, 2 each."""

    def __init__(self):
        self.allowed = threading.Event()

    def score(self, texts, answers, rows):
        assert self.allowed.wait(60)
        return [ScoredText(Score(2.0, True, {}), "ok") for _ in answers]


def source_of(rewards):
    settings = {"rollout.prompts_per_step": 2, "rollout.group_size": 2, "data.shuffle": False}
    config = apply_overrides(TrainConfig(), settings | {"rollout.max_new_tokens": 1})
    engine = NotingEngine()
    sampler = ProblemSampler(PROBLEMS, 0, shuffle=False)
    progress = ProgressReport()
    return RolloutSampler(
        config, sampler, byte_tokenizer(), engine, rewards, Parallel(), progress
    ), engine


def rewards_in(groups):
    return [rollout.reward for group in groups for rollout in group.rollouts]


def test_completions_are_there_before_their_rewards():
    rewards = Rewards()
    source, engine = source_of(rewards)
    sample = source.next_groups(0, Stopwatch())
    assert all(map(math.isnan, rewards_in(sample.groups))) and not sample.scores.done()
    rewards.allowed.set()
    scored = sample.scores.result()
    assert (
        rewards_in(scored.groups) == [2.0] * 4
        and scored.sampled == scored.groups
        and scored.dropped == 0
    )
    for group, scored_group in zip(sample.groups, scored.groups, strict=True):
        assert [r.completion for r in group.rollouts] == [
            r.completion for r in scored_group.rollouts
        ]
    source.sync_weights(None, Stopwatch())
    source.next_groups(1, Stopwatch())
    source.close()
    assert engine.events == ["ab", "sleep", "sync", "wake", "cd", "sleep"]
