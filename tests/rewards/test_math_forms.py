import pytest

from rewards.math_forms import MAX_NESTING, same_answer


@pytest.mark.parametrize(
    ("gold", "final", "same"),
    [
        # the letter of a choice, with its text or without
        ("(B)", r"\text{B) } 7", True),
        ("(B) 7", "7", True),
        ("(B) 7", "(C) 7", False),
        # numbers in another base than ten
        ("101_2", "101", True),
        ("5", "101_2", True),
        ("101_2", "101_3", False),
        ("FF_{16}", "ff_{16}", True),
        # regions: the pieces of a union in any order
        (r"(-\infty, 1) \cup (2, 3]", r"2 < x \le 3 \text{ or } x < 1", True),
        ("x > 2", "y > 2", False),
        ("[1, 2)", "(1, 2]", False),
        # a column or a row said as a tuple, and no other matrix
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1, 2)", True),
        (r"\begin{pmatrix}1 & 2\end{pmatrix}", "(1, 2)", True),
        (r"\begin{pmatrix}1 & 2\\3 & 4\end{pmatrix}", "(1, 2, 3, 4)", False),
        (r"\begin{pmatrix}1 & 2\\3 & 4\end{pmatrix}", r"\begin{pmatrix}1 & 3\\2 & 4\end{pmatrix}", False),
        (r"\begin{pmatrix}1\end{pmatrix}", r"\{1\}", False),
        # order counts in a tuple, number in a list, neither in a set
        ("(1, 2)", "(2, 1)", False),
        ("1, 1, 2", "1, 2", False),
        ("1, 1, 2", "2, 1, 1", True),
        (r"\{1, 1, 2\}", r"\{2, 1\}", True),
        ("[1, 2, 3]", "(1, 2, 3)", True),
        (r"\langle 1, 2 \rangle", "(1, 2)", True),
        # names of values
        ("(x, y) = (1, 2)", "(1, 2)", True),
        ("(1, 2)", "x = 1, y = 2", True),
        ("x = 1, y = 2", "y = 1, x = 2", False),
        ("x = 1, x = 2", "x = 2, 1", True),
        ("f(x) = x + 1", "x + 1", True),
        ("y = 2x", "z = 2x", False),
        (r"1 \pm \sqrt{2}", r"1 + \sqrt{2}, 1 - \sqrt{2}", True),
        # names of points and figures
        (r"\overline{AB}", "AB", True),
        (r"\overline{AB}", r"\angle AB", False),
        # measures
        ("0.5", r"50\%", True),
        ("50", r"50\%", True),
        (r"180^\circ", r"\pi", True),
        (r"5 \text{ cm}", r"5 \text{ m}", False),
        # what stands before or after an approximation
        (r"x \approx 3.14", "3.14", True),
        (r"\sqrt{2} \approx 1.41", "1.41", False),
        # nothing at all
        (r"\text{no solution}", r"\emptyset", True),
        (r"\emptyset", "0", False),
    ],
)
def test_kinds_of_answers(gold, final, same):
    assert same_answer(gold, final) is same


@pytest.mark.parametrize("final", ["0.333\\ldots", "(" * (MAX_NESTING + 1) + "x" + ")" * (MAX_NESTING + 1)])
def test_what_goes_on_or_nests_too_deep_is_not_parsed(monkeypatch, final):
    monkeypatch.setattr("rewards.math_forms.same_value", None)
    assert not same_answer(r"\frac{1}{3}", final)


def test_an_empty_answer_equals_nothing_else():
    assert not same_answer("0", "")
    assert not same_answer("", "0")
