import pytest

from tests.invariants.rules import algorithm
from tests.refusals import refused
from trainer.algorithm.rule_state import initial_states, next_states, restored_states, state_metrics
from trainer.rules import StepSummary

SUMMARY = StepSummary(
    step=3, total_steps=10, reward=0.5, accuracy=0.5, entropy=0.1, clip_fraction=0.0, approx_kl=0.0
)
CONFIG = algorithm({"loss": "clip_higher_schedule:ClipHigherSchedule"})


def alone(items):
    return items


def test_a_state_starts_moves_and_is_logged():
    states = initial_states(CONFIG)
    assert states == {"advantage": {}, "loss": {"high": 0.24}}
    states = next_states(CONFIG, states, SUMMARY, alone)
    assert states["loss"] == {"high": pytest.approx(0.24 + 0.1 * 0.2)}
    assert state_metrics(states) == {"rule/loss/high": states["loss"]["high"]}


def test_a_restored_state_has_the_rules_names_only():
    saved = {"loss": {"high": 0.3, "gone": 1.0}}
    assert restored_states(CONFIG, saved)["loss"] == {"high": 0.3}
    assert restored_states(CONFIG, {})["loss"] == {"high": 0.24}


def test_rules_without_a_state_gather_nothing():
    config = algorithm({"loss": "gspo"})
    states = initial_states(config)
    assert next_states(config, states, SUMMARY, gather=None) == states


def test_states_that_differ_between_ranks_are_refused():
    def other_rank(items):
        return [*items, {"advantage": {}, "loss": {"high": 0.9}}]

    with refused("rule-state-differs"):
        next_states(CONFIG, initial_states(CONFIG), SUMMARY, other_rank)


def test_a_state_that_is_not_finite_is_refused():
    endless = SUMMARY._replace(entropy=float("-inf"))
    with refused("rule-state-invalid"):
        next_states(CONFIG, initial_states(CONFIG), endless, alone)
