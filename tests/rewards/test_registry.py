import pytest

from rewards import REWARDS, Score, minimum, part_names, part_weight, prepare
from tests.refusals import refused
from tests.rewards import own_rewards
from tests.rewards.one_text import combine, resolve

OWN = "tests.rewards.own_rewards"
prepare(dict.fromkeys(REWARDS, 1.0))  # imports count against the time limit of a score
RIGHT = {
    "knights_knaves": ("<think></think><answer>Ava is a knave</answer>", "(1) Ava is a knave"),
    "math": (r"\boxed{3}", "3"),
    "format": ("<think></think><answer></answer>", ""),
    "last_number": ("2 + 1 = 3", "3"),
}


@pytest.mark.parametrize("name", sorted(REWARDS))
def test_contract_of_every_reward(name):
    text, answer = RIGHT[name]
    best = resolve(name)(text, answer)
    worst = resolve(name)("", answer)
    assert best.correct and best.parsed and not worst.correct and not worst.parsed
    assert best.reward > worst.reward == minimum({name: 1.0})
    for score in (best, worst):
        assert sum(score.breakdown.values()) == score.reward


def test_weighted_sum_of_several_functions():
    both = combine({"format": 0.5, "math": 2.0})
    score = both(r"\boxed{3}", "3")
    assert score == Score(2.0, True, {"format": 0.0, "math": 2.0}, True)
    score = both("<think></think><answer>\\boxed{4}</answer>", "3")
    assert score == Score(0.5, False, {"format": 0.5, "math": 0.0}, True)


def test_functions_of_one_short_name_keep_their_own_parts():
    weights = {"math": 1.0, "tests.rewards.own_rewards:math": 2.0, "last_number": 4.0}
    score = combine(weights)("3", "3")
    parts = {"math": 1.0, "tests.rewards.own_rewards:math": 2.0, "last_number": 4.0}
    assert score.breakdown == parts and sum(parts.values()) == score.reward == 7.0
    assert {part: part_weight(weights, part) for part in parts} == weights


def test_no_part_takes_the_entry_of_the_length_penalty():
    own = "tests.rewards.own_rewards:overlong"
    assert part_names({own: 1.0, "math": 1.0}) == {own: own, "math": "math"}
    assert combine({own: 3.0})("3", "3").breakdown == {f"{own}.overlong": 3.0}
    assert part_weight({own: 3.0}, "overlong") == 1.0


def test_minimum_is_the_weighted_sum_of_positive_weights():
    assert minimum({"knights_knaves": 0.5, "math": 3.0}) == -1.5
    resolve(f"{OWN}:length")
    assert minimum({f"{OWN}:length": 2.0}) == -14.0
    assert minimum({f"{OWN}:length": -1.0}) == 0.0


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 10**400, "low", None])
def test_a_minimum_that_is_not_a_finite_number_is_refused(monkeypatch, value):
    monkeypatch.setattr(own_rewards, "MINIMUM", value)
    with refused("invalid-minimum", ValueError, names=(f"{OWN}:length",)):
        minimum({f"{OWN}:length": 1.0})


@pytest.mark.parametrize(
    ("name", "code", "named"),
    [
        (f"{OWN}:for_trl", "signature-of-trl", "def for_trl(texts, answers)"),
        ("knights_knave", "unknown-reward", "did you mean knights_knaves?"),
        ("bleu", "unknown-reward", "format, knights_knaves, last_number, math"),
        ("no.such.module:f", "not-imported", "no.such.module"),
        (f"{OWN}:nothing", "no-such-name", " nothing"),
        (f"{OWN}:not_a_function", "not-a-function", "not_a_function"),
    ],
)
def test_unknown_names_are_refused_with_a_fix(name, code, named):
    with refused(code, ValueError, names=(named,)):
        resolve(name)
