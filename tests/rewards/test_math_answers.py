import pytest

from rewards.math_answers import final_answer, prepare, score
from tests.paths import DATA

prepare()

# Judged by hand, question unseen: `same` or `differ`, the accepted answer, the answer given.
PAIRS = [line.split("\t") for line in (DATA / "math_pairs.tsv").read_text(encoding="utf-8").splitlines() if line]
# What the reward is known to get wrong.
MISJUDGED = {("70", r"\text{seventy (70)}"), (r"e^{i\pi}", "-1")}


@pytest.mark.parametrize(("verdict", "gold", "given"), PAIRS)
def test_hand_judged_pairs(verdict, gold, given):
    accepted = score(f"so it is $\\boxed{{{given}}}$.", gold).correct
    assert accepted == ((verdict == "same") != ((gold, given) in MISJUDGED))


def test_the_list_of_pairs_is_large_and_balanced():
    verdicts = [verdict for verdict, _, _ in PAIRS]
    assert set(verdicts) == {"same", "differ"}
    assert verdicts.count("same") > 200
    assert verdicts.count("differ") > 150


@pytest.mark.parametrize(
    ("gold", "given"),
    [
        ("0.5", r"\frac12"),
        (r"\frac{1}{2}", "1/2"),
        ("1000", "1,000"),
        (142.0, "142"),
        (204, "204.0"),
        (r"\text{(B)}", "B"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"\{1,2\}", r"\{2, 1\}"),
        (r"0 \le x < 1", "[0,1)"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"90^\circ", "90"),
        ("5", r"5 \text{ cm}"),
        ("5", "x=5"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
        ("(x+1)^2", "x^2+2x+1"),
        (["7", "8"], "8"),
        (["9.6\n"], "9.6"),
        (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,2)"),
        (r"6.7\times 10^{-8}", "0.000000067"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
    ],
)
def test_equal_answers(gold, given):
    assert score(f"so it is \\boxed{{{given}}}.", gold).reward == 1.0


@pytest.mark.parametrize(
    ("gold", "given"),
    [
        ("5", "6"),
        ("x=5", "x=6"),
        ("(1,2)", "[1,2]"),
        ("(1,2)", "(2,1)"),
        ("1,2", "1"),
        ("2", "1, 2, 3"),
        ("1/3", "0.33"),
        (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"6.7\times 10^{-8}", r"2.1\times 10^{-9}"),
        ("100000000000000000001", "100000000000000000002"),
        (r"\text{Monday}", "Tuesday"),
        (["7", "8"], "9"),
        ("3", r"\text{not 3}"),
    ],
)
def test_different_answers(gold, given):
    result = score(f"so it is \\boxed{{{given}}}.", gold)
    assert (result.reward, result.correct, result.parsed) == (0.0, False, True)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} or rather \boxed{\frac{2}{3}}", r"\frac{2}{3}"),
        (r"<think>\boxed{1}</think> so \boxed{2}", "2"),
        (r"<think>\boxed{1}</think> done", "1"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\fbox{7}", "7"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        ("it is 12 and then\n#### 18\n", "18"),
        ("The answer is $\\frac{3}{4}$, done", r"\frac{3}{4}"),
        ("I think it is 7 or 8", "8"),
        ("The answer is (B)", "(B)"),
        ("no idea", None),
        (r"\boxed{}", None),
        ("\\boxed{" + "1" * 5000 + "}", None),
        ("", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 20_000,
        "{" * 100_000,
        "x" * 100_000,
        "\\boxed{" + "{" * 60 + "3" + "}" * 60 + "}",
        "\\boxed{" + "(" * 200 + "3",
        "\\boxed{\\frac{1}{}{}{\\sqrt}}",
        "\\boxed{\x00\ud800}",
    ],
)
def test_malformed_text_scores_zero(text):
    assert score(text, "3").reward == 0.0


def test_unparsed_is_told_from_wrong():
    assert not score("no idea", "3").parsed
    assert score("\\boxed{4}", "3").parsed
