import time

import pytest

from rewards import Score, any_batch_function, combine_batch
from rewards.custom import as_batch, load_function
from rewards.sandbox import RewardPool
from tests.refusals import refused
from tests.rewards.one_text import combine, resolve

OWN = "tests.rewards.own_rewards"


def test_own_function_may_return_anything_that_is_a_number():
    assert combine({f"{OWN}:length": 0.1})("abc", None) == Score(
        pytest.approx(0.3), True, {"length": pytest.approx(0.3)}
    )
    assert not resolve(f"{OWN}:length")("", None).correct
    assert resolve(f"{OWN}:as_numpy")("", None) == Score(0.5, True, {"as_numpy": 0.5})


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"reward": float("nan")}, "reward-not-finite", "reward nan"),
        ({"reward": 10**400}, "reward-not-finite", "reward 1"),
        ({"reward": "1"}, "reward-not-finite", "reward '1'"),
        ({"breakdown": {"a": float("nan")}}, "reward-not-finite", "breakdown['a'] nan"),
        ({"breakdown": {"a": None}}, "reward-not-finite", "breakdown['a'] None"),
        ({"breakdown": [1.0]}, "not-a-mapping", "[1.0]"),
        ({"correct": "no"}, "not-a-bool", "correct 'no'"),
        ({"parsed": "no"}, "not-a-bool", "parsed 'no'"),
    ],
)
def test_a_score_with_an_unusable_value_costs_one_completion(changes, code, named):
    usable = Score(1.0, True)
    wrong = Score(**{"reward": 1.0, "correct": True, **changes})
    function = as_batch(lambda texts, answers: [usable, wrong], "my_rewards:mine")
    first, second = function(["a", "b"], [None, None])
    assert first == usable
    with refused(code, ValueError, names=("my_rewards:mine", named)):
        raise second


def test_a_number_beyond_the_range_of_floats_costs_one_completion():
    function = as_batch(lambda texts, answers: [1, 10**400], "my_rewards:mine")
    first, second = function(["a", "b"], [None, None])
    assert first.reward == 1.0
    assert isinstance(second, ValueError) and "my_rewards:mine" in str(second)


@pytest.mark.parametrize("name", ["judged", "judged_together"])
def test_asynchronous_functions_score_a_batch_at_the_same_time(name):
    score = combine_batch({f"{OWN}:{name}": 2.0})
    texts = [str(number) for number in range(40)]
    times = [time.monotonic()]
    for some in (["7"], texts):
        scores = score(some, ["7"] * len(some))
        times.append(time.monotonic())
    # one after the other: at least 40 times
    assert times[2] - times[1] < 20 * (times[1] - times[0])
    assert [score.reward for score in scores] == [2.0 if text == "7" else 0.0 for text in texts]


def test_a_batch_function_beside_one_of_single_completions():
    functions = {f"{OWN}:against_the_mean": 1.0, f"{OWN}:length": 10.0}
    assert any_batch_function(functions) and not any_batch_function(
        {f"{OWN}:length": 1.0, "math": 1.0}
    )
    low, high = combine_batch(functions)(["a", "bbb"], [None, None])
    assert (low.reward, low.breakdown) == (9.0, {"against_the_mean": -1.0, "length": 10.0})
    assert (high.reward, high.breakdown) == (31.0, {"against_the_mean": 1.0, "length": 30.0})


def test_a_batch_function_must_return_a_list():
    with refused("not-a-list", ValueError, names=("one_number", "1.0")):
        combine_batch({f"{OWN}:one_number": 1.0})(["a", "b"], [None, None])


@pytest.mark.parametrize("scores", [{0: 1.0, 1: 0.5}, {1.0, 0.5}, "10"])
def test_a_batch_function_must_return_its_scores_in_order(scores):
    function = as_batch(lambda texts, answers: scores, "my_rewards:mine")
    with refused("not-a-list", ValueError, names=("my_rewards:mine", repr(scores))):
        function(["a", "b"], [None, None])


@pytest.mark.parametrize("name", ["rewards:exact", "rewards.mine:exact"])
def test_a_module_with_the_name_of_our_package_is_told_so(name):
    with refused("name-of-our-package", ValueError, names=("rewards",)):
        resolve(name)


def one_of(text, answers):
    return float(text in answers)


def column_beside_texts(texts, answer):
    return [float(text == value) for text, value in zip(texts, answer, strict=True)]


def response_and_answers(response, answers):
    return 1.0


@pytest.mark.parametrize(
    ("function", "row", "hint"),
    [
        (
            one_of,
            {"answers": ["3", "three"]},
            "next to text, the reference answer is called answer",
        ),
        (column_beside_texts, {"answer": "3"}, "next to texts, the reference answer is called ans"),
        (response_and_answers, {}, "answers makes the reward a batch function"),
    ],
)
def test_a_parameter_of_the_other_number_is_a_column(function, row, hint):
    score = as_batch(function, "mine:f")
    if row:
        assert score(["3"], ["4"], [row])[0].reward == 1.0
    with refused("no-such-column", ValueError, names=(hint,)):
        for result in score(["3"], ["4"], [{}]):
            raise result


def by_name(answer, text):
    return float(text == answer)


def by_position(response, solution):
    return float(response == solution)


def of_columns(text, numbers, scale=2, missing=None):
    return float(text == str(max(numbers))) * scale


def batch_of_columns(scale, texts, numbers):
    return [
        float(text == str(max(of_row))) * factor
        for text, of_row, factor in zip(texts, numbers, scale, strict=True)
    ]


async def later(numbers, text):
    return float(text == str(max(numbers)))


def all_columns(text, **columns):
    return float(text == columns["answer"]) * columns["scale"]


def all_by_position(completion, expected, **columns):
    return float(completion == expected) * columns["scale"]


def all_columns_of_batch(texts, **columns):
    return [10.0 if scale else 0.0 for scale in columns["scale"]]


def positional_only(text, answer, /):
    return float(text == answer)


def wrapper(*args, **kwargs):
    return float(len(args) == 2 and not kwargs)


def lacking(texts, other):
    return [float(value is None) for value in other]


# Function -> rewards of the texts 3 and 4, both with answer 3, numbers 1 3 and 4, and scale 10 for
# the first.
BOUND = {
    "by_name": [1.0, 0.0],
    "by_position": [1.0, 0.0],
    "of_columns": [10.0, 2.0],
    "batch_of_columns": [10.0, 1.0],
    "later": [1.0, 1.0],
    "all_columns": [10.0, 0.0],
    "all_by_position": [10.0, 0.0],
    "all_columns_of_batch": [10.0, 10.0],
    "positional_only": [1.0, 0.0],
    "wrapper": [1.0, 1.0],
    "lacking": [0.0, 1.0],
}


@pytest.mark.parametrize("name", BOUND)
def test_arguments_are_bound_by_name(name):
    rows = [{"numbers": [1, 3], "scale": 10, "other": 0}, {"numbers": [4]}]
    if name == "batch_of_columns" or name.startswith("all"):
        rows[1]["scale"] = 1
    functions = {f"tests.rewards.test_custom:{name}": 1.0}
    scores = combine_batch(functions)(["3", "4"], ["3", "3"], rows)
    assert [score.reward for score in scores] == BOUND[name]
    with RewardPool(functions, timeout_s=5, memory_mb=1024, workers=1) as pool:
        assert [
            result.score.reward for result in pool.score(["3", "4"], ["3", "3"], rows)
        ] == BOUND[name]


@pytest.mark.parametrize(
    ("name", "column"), [("of_columns", "numbers"), ("batch_of_columns", "scale")]
)
def test_a_column_that_a_row_lacks_is_named_with_the_function(name, column):
    function = combine_batch({f"tests.rewards.test_custom:{name}": 1.0})
    try:
        (error,) = function(["3"], ["3"], [{}])
    except ValueError as raised:  # by a function of a batch
        error = raised
    assert f"test_custom:{name} " in str(error) and f" {column}," in str(error)


def test_a_file_that_loptunes_package_hides_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "mine.py").write_text("def score(text, answer):\n    return 1.0\n")
    with refused("file-hidden", ValueError, names=("./rewards/mine.py",)):
        load_function("rewards.mine:score")
