import contextlib
import gc
import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from rewards import math_guard
from rewards.math_answers import final_answer, prepare, score
from rewards.math_guard import is_safe_to_evaluate, is_safe_to_parse, time_limit
from tests.paths import DATA
from tests.refusals import refused
from tests.tables import table

prepare()


def test_pairs_judged_by_hand():
    """Judged without the question: `same` or `differ`, the accepted answer, the answer given."""
    lines = (DATA / "math_pairs.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines if line]
    accepted = [score(f"so it is $\\boxed{{{given}}}$.", gold).correct for _, gold, given in pairs]
    refused = sum(
        verdict == "same" and not right
        for (verdict, *_), right in zip(pairs, accepted, strict=True)
    )
    taken = sum(
        verdict == "differ" and right for (verdict, *_), right in zip(pairs, accepted, strict=True)
    )
    assert (len(pairs), refused, taken) == (448, 5, 6)


@pytest.mark.parametrize(("gold", "given", "equal"), table("math_answers"))
def test_numbers_match_as_written_and_one_of_a_list_is_enough(gold, given, equal):
    result = score(f"so it is \\boxed{{{given}}}.", gold)
    assert (result.reward, result.correct, result.parsed) == (float(equal), equal, True)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{1}. " + "Think. " * 12 + r"So \boxed{\frac{2}{3}}", r"\boxed{\frac{2}{3}}"),
        (r"\boxed{1} and \boxed{2}", r"\boxed{1,2}"),
        (r"<think>\boxed{1}</think> so \boxed{2}", r"\boxed{2}"),
        (r"<think>\boxed{1}</think> done", r"\boxed{1}"),
        (r"\fbox{7}", r"\boxed{7}"),
        (r"\boxed{\{1\}}", r"\boxed{\{1\}}"),
        ("it is 12 and then\n#### 18\n", r"\boxed{18}"),
        ("<think>1</think>I think it is 7 or 8", "I think it is 7 or 8"),
        ("", ""),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "right"),
    [("The answer is $\\frac{6}{2}$, done", True), ("I think it is 7 or 8", False)],
)
def test_the_last_formula_counts_without_a_box(text, right):
    assert score(text, "3").correct is right


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no idea",
        r"\boxed{}",
        "\\boxed{" * 20_000,
        "{" * 100_000,
        "x" * 100_000,
        "\\boxed{" + "1" * 5000 + "}",
        "\\boxed{" + "{" * 60 + "3" + "}" * 60 + "}",
        "\\boxed{" + "(" * 200 + "3",
        "\\boxed{\x00\ud800}",
        r"\boxed{e^{10^{4000}}}",
        r"\boxed{\cosh(10^{4000})}",
        r"\boxed{\Gamma(10^{4000})}",
    ],
)
def test_malformed_text_scores_zero(text):
    assert score(text, "3").reward == 0.0


@pytest.mark.parametrize(
    "text", [r"\binom{100000}{50000}", r"{100000 \choose 5}", "(" * 13 + "1" + ")" * 13, "1" * 1001]
)
def test_formulas_that_must_not_be_parsed(text):
    assert not is_safe_to_parse(text) and is_safe_to_parse(r"\binom{100}{50} + (((1)))")


@pytest.mark.parametrize(
    "formula",
    [
        *("9**9**9", "(a+b+c+d)**300", "2**100000", "1.5**(1e5)", "1e-6000"),
        *("exp(100000)", "sinh(100000)", "cosh(-100000)", "gamma(100000)", "(10**4)!"),
        *("binomial(100000, 50000)", "rf(100000, 100000)"),
    ],
)
def test_formulas_that_must_not_be_evaluated(formula):
    from sympy import sympify

    assert not is_safe_to_evaluate(sympify(formula, evaluate=False))


@pytest.mark.parametrize(
    "formula",
    [
        *("(1 + x)**20 + 10**1000", "exp(1000)", "gamma(1000)", "0.125", "0.0", "1e-300"),
        *("binomial(100000, 3)", "zeta(3)", "sin(10**1000)", "oo", "factorial(1000)"),
        *("2**0.0001", "2**(-0.0001)", "(x + 1)**0.0001", "exp(0.000001)", "gamma(0.0001)"),
    ],
)
def test_formulas_that_may_be_evaluated(formula):
    from sympy import sympify

    assert is_safe_to_evaluate(sympify(formula, evaluate=False))


def test_neither_other_threads_nor_the_collection_of_garbage_count(monkeypatch):
    monkeypatch.setattr(math_guard, "_LIMIT_S", 0.2)
    with ThreadPoolExecutor(1) as threads, time_limit():
        assert not gc.isenabled()
        # without the interpreter's lock
        threads.submit(hashlib.pbkdf2_hmac, "sha256", b"", b"", 3_000_000).result()
    assert gc.isenabled()


def test_a_limit_swallowed_by_a_callback_is_raised_again(monkeypatch):
    monkeypatch.setattr(math_guard, "_LIMIT_S", 0.1)
    with pytest.raises(TimeoutError), time_limit():
        with contextlib.suppress(BaseException):
            while True:
                pass
        while True:
            pass


def test_the_time_limit_and_the_reward_do_not_depend_on_earlier_timeouts(monkeypatch):
    monkeypatch.setattr(math_guard, "_LIMIT_S", 0.05)
    for _ in range(8):
        with pytest.raises(TimeoutError), time_limit():
            while True:
                with contextlib.suppress(Exception):
                    sum(range(1000))
    monkeypatch.setattr(math_guard, "_LIMIT_S", 0.75)
    assert score(r"\boxed{\sin(3x)}", r"3\sin(x)-4\sin^3(x)").correct


@pytest.mark.parametrize(
    ("given", "gold", "equal"),
    [
        ("1\\,234", "1234", True),
        ("1 234", "1234", True),
        ("18 dollars", "18", True),
        ("90°", "90", True),
        ("1e3", "1000", True),
        ("１２", "12", True),
        ("\\textbf{(B)}\\ 12", "12", True),
        ("\\textbf{(B)}\\ 12", "B", True),
        ("1/2^{99}", "1/2^{98}", False),
        ("120_5", "120", False),
        ("120_5", "35", True),
        ("120_5", "120_5", True),
        ("120_{5}", "120_5", True),
        ("12_{0}", "12", False),
        ("12_{0}", "12_0", True),
        ("19", "19_{8}", False),
        ("19_{8}", "17", False),
        ("19_{8}", "19_8", True),
        ("6.626e-34", "1.6e-19", False),
        ("6.626e-34", "6.626\\times 10^{-34}", True),
        ("12.5\\%", "12.5", True),
        ("25\\%", "25", True),
        ("25%", "0.25", True),
        ("\\varnothing", "\\emptyset", True),
        ("\\emptyset", "\\varnothing", True),
        ("\\langle 1,2\\rangle", "(1,2)", True),
        ("\\left\\langle 1, 2 \\right\\rangle", "\\langle 1,2\\rangle", True),
        ("(D).", "D", True),
        ("(D)", "D", True),
        ("D", "(D)", True),
        ("C", "D", False),
        ("5 m", "5 cm", False),
        ("5 m", "5", True),
        ("5", "5 cm", True),
        ("5 cm", "5 cm", True),
        ("5\\text{ m}", "5\\text{ cm}", False),
        ("5\\text{ cm}", "5", True),
        ("1:2", "1/2", False),
        ("1:2", "1:2", True),
        ("2:4", "1:2", True),
        ("1/2", "0.5", True),
        ("12", "12.", True),
        ("12", "Answer: 12", True),
        ("12", "€12", True),
        ("12", "**12**", True),
        ("12", "<answer>12</answer>", True),
        ("12", "a=2\n#### 12", True),
        ("1,234", "1234", True),
        ("1234", "1,234", True),
        ("$12", "12", True),
        ("\\$12", "12", True),
        ("10 apples", "10", True),
        ("5x", "5x", True),
        ("5 x", "5x", True),
        ("x+1", "1+x", True),
        ("0.3333333333", "1/3", True),
        ("3 and 4", "3,4", True),
        ("90^\\circ", "90", True),
        ("-5", "−5", True),
        ("A", "A", True),
        ("1/3", "0.33", False),
        ("100 000", "100000", True),
        ("\\frac{1}{2}\\text{ hours}", "1/2", True),
        ("10 km/h", "10 km/h", True),
        ("10 km/h", "10 mph", False),
        ("\\dfrac{3}{4}", "0.75", True),
        ("2\\pi", "6.28", False),
        ("x=5", "5", True),
        ("(1,2)", "(1, 2)", True),
        ("1e-5", "0.00001", True),
        ("45 degrees", "45", True),
        ("\\{1,2\\}", "\\{2,1\\}", True),
        ("12.5\\text{ percent}", "12.5", True),
        ("\\frac{25}{2}\\%", "12.5", True),
        ("12.5\\%", "1250", False),
        ("0.5", "50", False),
        ("∅", "\\emptyset", True),
        ("\\{\\}", "\\varnothing", True),
        ("\\emptyset", "0", False),
        ("⟨1,2⟩", "(1,2)", True),
        ("<1,2>", "\\langle 1,2\\rangle", True),
        ("\\bigl\\langle 1,2\\bigr\\rangle", "(1,2)", True),
        ("\\langle 1,2\\rangle", "\\langle 2,1\\rangle", False),
        ("Option D", "D", True),
        ("\\text{Choice (D)}", "D", True),
        ("(D) 12", "D", True),
        ("D: 12", "12", True),
        ("(E).", "D", False),
        ("5m", "5cm", False),
        ("5\\,\\text{m}", "5\\text{ cm}", False),
        ("5 \\mathrm{~m}", "5 \\mathrm{~cm}", False),
        ("\\frac12\\text{ m}", "\\frac12\\text{ cm}", False),
        ("5\\sqrt{2}\\text{ m}", "5\\sqrt{2}\\text{ cm}", False),
        ("5\\pi\\text{ cm}", "5\\pi", True),
        ("x=5 m", "x = 5 cm", False),
        ("5\\text{ m}^2", "5\\text{ m}", False),
        ("5\\text{ square meters}", "5\\text{ m}^2", True),
        ("5 meters", "5 m", True),
        ("5 minutes", "5 hours", False),
        ("5\\text{ miles per hour}", "5 mph", True),
        ("5\\text{ cents}", "\\$5", False),
        ("5^\\circ", "5\\text{ radians}", False),
        ("1\\colon 2", "1:2", True),
        ("1\\text{ to }2", "1:2", True),
        ("1:2:3", "2:4:6", True),
        ("1:2:3", "1/6", False),
        ("1:\\sqrt{2}", "\\frac{1}{\\sqrt2}", False),
        ("x:y", "x/y", False),
        ("3:30 \\text{ PM}", "3:30 AM", False),
        ("0.1\\overline{6}", "1/6", True),
        ("-1.\\overline{3}", "-\\frac43", True),
        ("4.0\\ldots", "4", False),
        ("10,\\!000", "10000", True),
        ("(1,\\ 234)", "(1,234)", True),
        ("1,2", "(1,2)", False),
        ("\\{1,2\\}", "(1,2)", False),
        ("5", "5,5", False),
        ("2t", "2", False),
        ("\\angle ACB", "\\angle ABC", False),
        ("\\overline{AB}", "AB", True),
        ("x<2 \\text{ or } x>3", "(-\\infty,2)\\cup(3,\\infty)", True),
        ("\\text{Bob, Alice}", "\\text{Alice, Bob}", True),
    ],
)
def test_notations(given, gold, equal):
    assert score(f"so it is \\boxed{{{given}}}.", gold).correct is equal


WAIT = r"\boxed{41}" + "\n\nWait, I made an arithmetic error: " + r"\boxed{42}"


@pytest.mark.parametrize(
    ("text", "gold", "equal"),
    [
        (WAIT, "42", True),
        (WAIT, "41", False),
        (WAIT, "41,42", False),
        ("#### 10 apples", "10", True),
        (r"\boxed{1} and \boxed{2}", "1,2", True),
        (r"\boxed{1}, \boxed{2}", "2", False),
        (r"$x=\boxed{1}$ or $x=\boxed{2}$", "1,2", True),
        (r"\boxed{41}. Hmm, no. \boxed{42}", "42", True),
        (r"\boxed{41} \Rightarrow \boxed{42}", "42", True),
        ("#### **10**", "10", True),
        ("#### The answer is 10", "10", True),
        ("#### 1,000 apples", "1000", True),
        ("#### (D).", "D", True),
        ("The answer is **(D)**.", "D", True),
        ("The answer is (C).", "D", False),
        ("The answer is A large number", "A", False),
    ],
)
def test_the_last_statement_counts(text, gold, equal):
    assert score(text, gold).correct is equal


@pytest.mark.parametrize("gold", [{"a": 1}, None, True, ["1", None]])
def test_what_is_no_answer_is_an_error(gold):
    with refused("invalid-answer", ValueError):
        score(r"\boxed{1}", gold)
