import logging

from rewards.sandbox import RewardPool
from tests.trainer.load_check.runs import PROBLEMS
from trainer.load_check.reward import probe_reward, warn_of_empty


def test_reference_answers_and_empty_completions_are_scored_with_their_prefill(caplog):
    problems = [PROBLEMS[0].__class__("0", "1+3=", "<answer>", "4</answer>", "test")]
    with RewardPool(
        {"tests.trainer.load_check.scores:brief": 1.0}, timeout_s=5.0, memory_mb=1024, workers=1
    ) as rewards:
        (probe,) = probe_reward(rewards, problems)
        assert probe.reference.text == "<answer>4</answer>"
        assert probe.empty.text == "<answer>"
        assert probe.reference.scored.score.reward == -18
        assert probe.empty.scored.score.reward == -8
        with caplog.at_level(logging.WARNING):
            warn_of_empty([probe])
    assert "an empty completion scores -8, and the reference answer '4</answer>' only -18" in (
        caplog.text
    )
