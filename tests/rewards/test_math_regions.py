import pytest

from rewards.math_regions import Interval, intervals


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("x < 2", [Interval("x", "()", ("-oo", "2"))]),
        (r"2 \ge x", [Interval("x", "(]", ("-oo", "2"))]),
        (r"0 \le x < 1", [Interval("x", "[)", ("0", "1"))]),
        (r"1 > x \ge 0", [Interval("x", "[)", ("0", "1"))]),
        (r"x \ne 3", [Interval("x", "()", ("-oo", "3")), Interval("x", "()", ("3", "oo"))]),
        (r"x > 1 \text{ and } x < 3", [Interval("x", "()", ("1", "3"))]),
        (r"(-\infty, 2] \cup (3, \infty)", [Interval("", "(]", ("-oo", "2")), Interval("", "()", ("3", "oo"))]),
        (r"x \in [0, 1)", [Interval("", "[)", ("0", "1"))]),
        (r"\{x \mid x > 0\}", [Interval("x", "()", ("0", "oo"))]),
        (r"\mathbb{R}", [Interval("", "()", ("-oo", "oo"))]),
        ("x < x + 1", None),
        ("a < b < c < d", None),
        ("x + y < 2", None),
        ("(1, 2, 3)", None),
        ("5", None),
    ],
)
def test_sets_of_real_numbers(text, pieces):
    assert intervals(text) == pieces
