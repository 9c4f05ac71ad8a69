import pandas as pd
import pytest

from dashboards.sources.conditions import Condition, conditions, equal, equalities, split_list
from tests.refusals import refused


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a, b", ["a", "b"]),
        ("arch=[64, 64],lr=1", ["arch=[64, 64]", "lr=1"]),
        ("'a,b',c", ["a,b", "c"]),
        ('arch="x, y",lr=1', ['arch="x, y"', "lr=1"]),
        ("model=ResNet50 (a, b)", ["model=ResNet50 (a, b)"]),
        ("name=5' (,b", ["name=5' (", "b"]),
        ("", []),
    ],
)
def test_commas_in_brackets_and_quotes_do_not_separate(text, items):
    assert split_list(text) == items


def test_conditions_compare_numbers_as_numbers():
    lr = pd.Series(["0.001", "1e-3", "0.003", None])
    rows = {
        "lr=1e-3": [True, True, False, False],
        "lr!=1e-3": [False, False, True, True],
        "lr<0.002": [True, True, False, False],
        "lr>=0.003": [False, False, True, False],
        "lr=none": [False, False, False, True],
    }
    for text, expected in rows.items():
        (condition,) = conditions(text)
        assert condition.holds(lr).tolist() == expected, text
    with refused("not-a-number"):
        Condition("lr", "<", "high").holds(lr)


def test_lists_words_and_truths_equal_what_is_typed():
    assert equal([64, 64], "[64,64]") and equal("[64, 64]", "[64,64]")
    assert equal(True, "true") and equal("a ", "a") and not equal(True, "1")
    assert not equal("a", "A")


def test_conditions_that_are_none_are_refused():
    assert equalities("a=1,b='x,y'") == {"a": "1", "b": "x,y"}
    assert conditions("lr>1,lr<3") == [Condition("lr", ">", "1"), Condition("lr", "<", "3")]
    with refused("not-a-condition"):
        conditions("grpo")
    with refused("not-a-condition"):
        equalities("lr>1")
    with refused("second-value"):
        conditions("loss=a,loss=b")
