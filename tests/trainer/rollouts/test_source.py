import math
import threading

from rewards import Score
from rewards.sandbox import ScoredText
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.metrics.stopwatch import Stopwatch
from trainer.parallel.ranks import Parallel
from trainer.problems.sampler import ProblemSampler
from trainer.progress import ProgressReport
from trainer.rollouts.source import RolloutSource
from trainer.types import Completion, Problem

PROBLEMS = [Problem(name, name, "", name, "test") for name in "abcdef"]


class Engine:
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
    engine = Engine()
    sampler = ProblemSampler(PROBLEMS, 0, shuffle=False)
    progress = ProgressReport()
    return RolloutSource(
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
