import subprocess
import sys
import time

import pytest

from rewards import REWARDS, Score, combine, combine_batch, minimum, resolve, wants_batches

OWN = "tests.rewards.own_rewards"
RIGHT = {
    "knights_knaves": ("<think></think><answer>Ava is a knave</answer>", "(1) Ava is a knave"),
    "math": (r"\boxed{3}", "3"),
    "format": ("<think></think><answer></answer>", ""),
}


@pytest.mark.parametrize("name", sorted(REWARDS))
def test_contract_of_every_reward(name):
    text, answer = RIGHT[name]
    best, worst = resolve(name)(text, answer), resolve(name)("", answer)
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


def test_weight_of_a_single_function_scales_its_parts():
    score = combine({"knights_knaves": 0.5})(*RIGHT["knights_knaves"])
    assert score == Score(1.5, True, {"format": 0.5, "answer": 1.0}, True)


def test_minimum_is_the_weighted_sum_of_positive_weights():
    assert minimum({"knights_knaves": 0.5, "math": 3.0}) == -1.5
    resolve(f"{OWN}:length")
    assert minimum({f"{OWN}:length": 2.0}) == -14.0
    assert minimum({f"{OWN}:length": -1.0}) == 0.0


def test_own_function_may_return_a_number():
    assert combine({f"{OWN}:length": 0.1})("abc", None) == Score(
        pytest.approx(0.3), True, {"length": pytest.approx(0.3)}
    )
    assert not resolve(f"{OWN}:length")("", None).correct


def test_a_number_is_anything_that_is_one():
    assert resolve(f"{OWN}:as_numpy")("", None) == Score(0.5, True, {"as_numpy": 0.5})


@pytest.mark.parametrize("name", ["judged", "judged_together"])
def test_asynchronous_functions_score_a_batch_at_the_same_time(name):
    texts = [str(number) for number in range(40)]
    started = time.monotonic()
    scores = combine_batch({f"{OWN}:{name}": 2.0})(texts, ["7"] * 40)
    assert time.monotonic() - started < 40 * 0.2 / 2  # one after the other: 8 s
    assert [score.reward for score in scores] == [2.0 if text == "7" else 0.0 for text in texts]


def test_a_batch_function_beside_one_of_single_completions():
    functions = {f"{OWN}:against_the_mean": 1.0, f"{OWN}:length": 10.0}
    assert wants_batches(functions) and not wants_batches({f"{OWN}:length": 1.0, "math": 1.0})
    low, high = combine_batch(functions)(["a", "bbb"], [None, None])
    assert (low.reward, low.breakdown) == (9.0, {"against_the_mean": -1.0, "length": 10.0})
    assert (high.reward, high.breakdown) == (31.0, {"against_the_mean": 1.0, "length": 30.0})


@pytest.mark.parametrize(
    ("name", "said"), [("too_few", "returned 1 scores for 2 texts"), ("one_number", "expected a list of scores")]
)
def test_a_batch_function_must_score_every_text(name, said):
    with pytest.raises(ValueError, match=said):
        combine_batch({f"{OWN}:{name}": 1.0})(["a", "b"], [None, None])


@pytest.mark.parametrize("hidden", ["rewards.py", "rewards/"])
def test_a_file_that_our_package_hides_is_named(tmp_path, monkeypatch, hidden):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / hidden.rstrip("/")
    path.mkdir() if hidden.endswith("/") else path.touch()
    with pytest.raises(ValueError, match=f"has no function exact; {path} is hidden by loptune's own package"):
        resolve("rewards:exact")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{OWN}:for_trl", r"written for TRL; here it is def for_trl\(texts, answers\)"),
        ("knights_knave", "did you mean knights_knaves?"),
        ("bleu", "format, knights_knaves, math"),
        ("no.such.module:f", "cannot import no.such.module"),
        (f"{OWN}:nothing", "has no function nothing"),
        (f"{OWN}:not_a_function", "has no function not_a_function"),
    ],
)
def test_unknown_names_are_refused_with_a_fix(name, said):
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        resolve(name)


def test_no_function_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        combine({})


def test_import_is_light():
    code = (
        "import sys, rewards; print([m for m in ('torch', 'trainer', 'sympy', 'math_verify') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
