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


@pytest.mark.parametrize(
    ("gold", "given", "equal"),
    [
        (142.0, "142", True),
        (204, "204.0", True),
        (["7", "8"], "8", True),
        (["7", "8"], "9", False),
        (["9.6\n"], "9.6", True),
    ],
)
def test_a_number_is_accepted_as_it_is_written_and_one_of_a_list_is_enough(gold, given, equal):
    result = score(f"so it is \\boxed{{{given}}}.", gold)
    assert (result.reward, result.correct, result.parsed) == (float(equal), equal, True)


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
