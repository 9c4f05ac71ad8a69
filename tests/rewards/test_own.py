import time

import pytest

from rewards import Score, combine, combine_batch, resolve, wants_batches

OWN = "tests.rewards.own_rewards"


def test_own_function_may_return_a_number():
    assert combine({f"{OWN}:length": 0.1})("abc", None) == Score(
        pytest.approx(0.3), True, {"length": pytest.approx(0.3)}
    )
    assert not resolve(f"{OWN}:length")("", None).correct


def test_a_number_is_anything_that_is_one():
    assert resolve(f"{OWN}:as_numpy")("", None) == Score(0.5, True, {"as_numpy": 0.5})


@pytest.mark.parametrize("name", ["judged", "judged_together"])
def test_asynchronous_functions_score_a_batch_at_the_same_time(name):
    score = combine_batch({f"{OWN}:{name}": 2.0})
    texts = [str(number) for number in range(40)]
    times = [time.monotonic()]
    for some in (["7"], texts):
        scores = score(some, ["7"] * len(some))
        times.append(time.monotonic())
    assert times[2] - times[1] < 20 * (times[1] - times[0])  # one after the other: at least 40 times
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
