import pytest

from rewards.knights_knaves import fraction_correct, score
from tests.refusals import refused
from tests.tables import table

SOLUTION = "(1) Ava is a knight\n(2) Ben is a knave"


@pytest.mark.parametrize(("text", "reward", "correct", "parsed"), table("knights_knaves_scores"))
def test_score(text, reward, correct, parsed):
    result = score(text, SOLUTION)
    assert (result.reward, result.correct, result.parsed) == (reward, correct, parsed)
    assert sum(result.breakdown.values()) == reward


def test_a_solution_without_roles_is_refused():
    with refused("invalid-answer", ValueError, names=("'42'", "(1) Zoey is a knight")):
        score("<think></think><answer></answer>", "42")


def test_long_hostile_text_is_scored_quickly():
    answer = "Ava " * 50_000 + "knight knave"
    assert (
        score(f"<think>{'(' * 100_000}</think><answer>{answer}</answer>", SOLUTION).reward == -1.0
    )


@pytest.mark.parametrize(
    ("text", "fraction", "parsed"),
    [
        ("Ava is a knight. Then Ben is a knight, no: BEN is a knave", 1.0, True),
        ("If Ava is a knave, Ben is a knave", 0.5, True),
        ("Ava is a knight", 0.5, False),
        ("Ava is the knight, and a knave is Ben", 0.0, False),
    ],
)
def test_share_of_roles_that_are_right_by_what_is_said_last(text, fraction, parsed):
    result = fraction_correct(text, {"solution_text_format": SOLUTION})
    assert (result.reward, result.correct, result.parsed) == (fraction, fraction == 1, parsed)


@pytest.mark.parametrize(
    "hedged",
    [
        "If Zoey is a knight then Noah is a knave",
        "Zoey is a knight or Noah is a knave",
        "It is not so that Zoey is a knight and Noah is a knave",
        "Zoey is a knight unless Noah is a knave",
        "Maybe Zoey is a knight, Noah is a knave",
        "Zoey is a knight when Noah is a knave",
        "Zoey is a knight provided that Noah is a knave",
        "Given that Zoey is a knight, Noah is a knave",
        "Assume Zoey is a knight. Noah is a knave",
        "Let's say Zoey is a knight; then Noah is a knave",
        "Whenever Zoey is a knight, Noah is a knave",
        "Zoey is a knight as long as Noah is a knave",
        "Zoey is a knight => Noah is a knave",
        "Zoey is a knight ⇔ Noah is a knave",
        r"Zoey is a knight $\implies$ Noah is a knave",
        "Zoey is a knight? Noah is a knave?",
        "It is false that Zoey is a knight and Noah is a knave",
        "It is impossible that Zoey is a knight and Noah is a knave",
        "Noah says Zoey is a knight, Zoey says Noah is a knave",
        "The claim that Zoey is a knight fails; Noah is a knave",
        "Zoey is a knight with probability 0.5, Noah is a knave",
    ],
)
def test_a_hedged_statement_is_no_answer(hedged):
    solution = "(1) Zoey is a knight\n(2) Noah is a knave"
    assert score(f"<think></think><answer>{hedged}</answer>", solution).reward == -1.0
    plain = "Zoey is a knight and Noah is a knave"
    assert score(f"<think></think><answer>{plain}</answer>", solution).reward == 3.0


@pytest.mark.parametrize(
    "plain",
    [
        "Given the statements, Zoey is a knight and therefore Noah is a knave.",
        "So the roles are:\n(1) Zoey is a knight\n(2) Noah is a knave",
        "Zoey is a knight, because Noah lies: Noah is a knave",
        "Thus Zoey is a knight, while Noah is a knave",
    ],
)
def test_words_around_a_plain_statement_do_not_matter(plain):
    solution = "(1) Zoey is a knight\n(2) Noah is a knave"
    text = f"<think></think><answer>{plain}</answer>"
    assert score(text, solution).reward == 3.0


def test_a_person_may_have_the_name_of_a_hedging_word():
    solution = "(1) May is a knight\n(2) Chance is a knave"
    text = "<think></think><answer>May is a knight and Chance is a knave</answer>"
    assert score(text, solution).reward == 3.0


@pytest.mark.parametrize("solution", [["(1) Zoey is a knight"], {}, None, 1])
@pytest.mark.parametrize("function", [score, fraction_correct])
def test_a_solution_that_is_no_text_is_refused(function, solution):
    with refused("invalid-answer", ValueError, names=("(1) Zoey is a knight",)):
        function("<think></think><answer>Zoey is a knight</answer>", solution)


def test_hedging_words_without_end_are_read_quickly():
    answer = "no " * 100_000 + "knight knave"
    assert score(f"<think></think><answer>{answer}</answer>", SOLUTION).reward == -1.0
