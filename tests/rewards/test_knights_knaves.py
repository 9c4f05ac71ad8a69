import pytest

from rewards.knights_knaves import score, share_right
from tests.tables import table

SOLUTION = "(1) Ava is a knight\n(2) Ben is a knave"


@pytest.mark.parametrize(("text", "reward", "correct", "parsed"), table("knights_knaves_scores"))
def test_score(text, reward, correct, parsed):
    result = score(text, SOLUTION)
    assert (result.reward, result.correct, result.parsed) == (reward, correct, parsed)
    assert sum(result.breakdown.values()) == reward


def test_a_solution_without_roles_is_refused():
    with pytest.raises(ValueError, match="Zoey is a knight"):
        score("<think></think><answer></answer>", "42")


def test_long_hostile_text_is_scored_quickly():
    answer = "Ava " * 50_000 + "knight knave"
    assert (
        score(f"<think>{'(' * 100_000}</think><answer>{answer}</answer>", SOLUTION).reward == -1.0
    )


@pytest.mark.parametrize(
    ("text", "share", "parsed"),
    [
        ("Ava is a knight. Then Ben is a knight, no: BEN is a knave", 1.0, True),
        ("If Ava is a knave, Ben is a knave", 0.5, True),
        ("Ava is a knight", 0.5, False),
        ("Ava is the knight, and a knave is Ben", 0.0, False),
    ],
)
def test_share_of_roles_that_are_right_by_what_is_said_last(text, share, parsed):
    result = share_right(text, {"solution_text_format": SOLUTION})
    assert (result.reward, result.correct, result.parsed) == (share, share == 1, parsed)


@pytest.mark.parametrize(
    "hedged",
    [
        "If Zoey is a knight then Noah is a knave",
        "Zoey is a knight or Noah is a knave",
        "It is not so that Zoey is a knight and Noah is a knave",
        "Zoey is a knight unless Noah is a knave",
        "Maybe Zoey is a knight, Noah is a knave",
    ],
)
def test_a_hedged_statement_is_no_answer(hedged):
    solution = "(1) Zoey is a knight\n(2) Noah is a knave"
    assert score(f"<think></think><answer>{hedged}</answer>", solution).reward == -1.0
    plain = "Zoey is a knight and Noah is a knave"
    assert score(f"<think></think><answer>{plain}</answer>", solution).reward == 3.0
