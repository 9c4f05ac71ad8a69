import re
from fractions import Fraction

import pytest

from rewards.math_notation import different_units, inside, looks, number, quantity, split, tidy


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-1,234.5", Fraction(-2469, 2)),
        ("1 000 000", 1_000_000),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"0.\overline{63}", Fraction(7, 11)),
        (r"2.\dot3", Fraction(7, 3)),
        ("1e-7", Fraction(1, 10**7)),
        (r"-3 \times 10^{5}", -300_000),
        (r"10^{-2}", Fraction(1, 100)),
        ("7/4", Fraction(7, 4)),
        (r"\frac{-7}{4}", Fraction(-7, 4)),
        (r"1\frac{3}{4}", Fraction(7, 4)),
        ("-1 3/4", Fraction(-7, 4)),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        ("12,34", None),
        (".", None),
        ("x", None),
        ("2^3", None),
        ("0x10", None),
        ("1e999999", None),
    ],
)
def test_numerals_have_exact_values(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (r"5 \text{ cm}", "5", "cm"),
        (r"5\text{ centimeters}", "5", "cm"),
        (r"12 \text{ cm}^2", "12", "cm"),
        ("18 ways", "18", "ways"),
        (r"36\pi \text{ inches}", r"36\pi", "in"),
        (r"50\%", "50", "%"),
        (r"90^\circ", "90", "degree"),
        (r"\$5.50", "5.50", "$"),
        ("15 km/h", "15", "km/h"),
        ("8 m", "8", "m"),
        ("8m", "8m", ""),
        ("3xy", "3xy", ""),
        ("2 ab", "2 ab", ""),
        (r"2 \text{ or } 3", r"2 \text{ or } 3", ""),
        ("2 or 3", "2 or 3", ""),
        (r"3 \sin x", r"3 \sin x", ""),
        (r"\cos 60^\circ", r"\cos 60^\circ", ""),
        ("Monday", "Monday", ""),
    ],
)
def test_a_unit_is_told_from_symbols_and_words(text, value, unit):
    assert quantity(text) == (value, unit)


def test_units_that_are_measures_differ_and_what_is_counted_does_not():
    assert different_units("cm", "m")
    assert not different_units("ways", "arrangements")
    assert not different_units("cm", "")


def test_tidying_keeps_the_rows_of_a_matrix_and_words_as_words():
    assert tidy(r"$\left( 1,\! 000 \right)$") == "( 1, 000 )"
    assert tidy(r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}") == r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"
    assert tidy(r"\mathrm{even}") == r"\text{even}"
    assert tidy(r"\text{18 ways}") == "18 ways"
    assert tidy(r"\dfrac 12") == r"\frac{1}{2}"
    assert looks(r"\text{New  York}.") == looks("new york")


def test_brackets_hold_together():
    comma = re.compile(",")
    assert split("(1,2),{3,4},5", comma) == ["(1,2)", "{3,4}", "5"]
    assert inside("(1,2]") == ("(", "1,2", "]")
    assert inside(r"\{1\}") == (r"\{", "1", r"\}")
    assert inside("(x+1)(x+2)") is None
    assert inside("(1") is None
