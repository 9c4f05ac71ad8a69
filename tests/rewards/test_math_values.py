import pytest

from rewards.math_values import last_formula, same_value


@pytest.mark.parametrize(
    ("gold", "final", "same"),
    [
        ("0.1", r"\frac{1}{10}", True),
        ("0.333333", r"\frac{1}{3}", False),  # equal in 6 decimals
        (r"\pi", "3.14159265358979", False),
        (r"\sqrt{2} + \sqrt{3}", r"\sqrt{5 + 2\sqrt{6}}", True),
        (r"\frac{1}{2^{200}}", r"\frac{1}{2^{201}}", False),  # far below any tolerance of floats
        (r"10^{20}", "10^{20} + 1", False),
        (r"10^{30}", "10^{30} + 1", False),  # nor too large for any
        (r"10^{40} \sqrt{2} \cdot \sqrt{3}", r"10^{40} \sqrt{6}", True),
        ("(x+1)^2", "x^2 + 2x + 1", True),
        ("x^2", "x^3", False),
        (r"180^\circ", r"\pi", True),
        (r"22.5^\circ", r"\frac{\pi}{8}", True),
        ("5 m", "5", False),  # a letter is a symbol, no unit
        (r"\frac{0}{0}", "1", False),
        (r"\infty", r"\infty", True),
        ("", "0", False),
    ],
)
def test_values_are_compared_exactly(gold, final, same):
    assert same_value(gold, final) is same
    assert same_value(final, gold) is same


def test_what_cannot_be_parsed_equals_itself_alone():
    broken = r"\frac{1}{"
    assert same_value(broken, broken)
    assert not same_value(broken, "1")  # the 1 in it is not its value
    assert not same_value(broken, r"\sqrt{")


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("first $\\frac{1}{2}$, then $\\frac{3}{4}$.", r"\frac{3}{4}"),
        ("it is 12", "12"),
        ("none at all", None),
        ("", None),
    ],
)
def test_the_last_formula_of_a_text(text, formula):
    assert last_formula(text) == formula
