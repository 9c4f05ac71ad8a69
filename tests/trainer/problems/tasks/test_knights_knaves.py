import ast
import itertools
import re

import pyarrow.parquet as pq
import pytest

from tests.paths import DATA
from tests.refusals import refused
from tests.trainer.problems.tasks.plain_logic import holds
from trainer.problems.tasks.knights_knaves import (
    Puzzle,
    compact_prompt,
    difficulty,
    read_answer,
    solve,
)
from trainer.problems.tasks.puzzle_generator import generate

PUBLISHED = pq.read_table(DATA / "knights_knaves.parquet").to_pylist()
KNIGHT = ("telling-truth", 0)
KNAVE = ("lying", 0)
SPEAKING = re.compile(
    r'"(?P<a>[^"]*)," (?P<an>\w+) (claimed|declared|mentioned)\.|"(?P<b>[^"]*)" - (?P<bn>\w+)\.|'
    r"(?P<cn>\w+) (asserted:|commented,|noted,|remarked,|stated,|was heard saying,) "
    r'"(?P<c>[^"]*)"\.|'
    r'(?P<dn>\w+) (expressed that|said that|told you that) (?P<d>[^".]*)\.|(?P<en>\w+) said, '
    r'"(?P<e>[^"]*)\."|'
    r'(According to|As) (?P<fn>\w+)( put it)?, "(?P<f>[^"]*)"\.|In a statement by (?P<gn>\w+): '
    r'"(?P<g>[^"]*)"\.|'
    r'In (?P<hn>\w+)\'s words: "(?P<h>[^"]*)"\.'
)


def _as_tuples(part):
    return tuple(map(_as_tuples, part)) if isinstance(part, list | tuple) else part


def brute_force(statements):
    return [
        roles
        for roles in itertools.product([False, True], repeat=len(statements))
        if all(
            holds(statement, roles) == role
            for statement, role in zip(statements, roles, strict=True)
        )
    ]


@pytest.mark.parametrize("statement", [("xor", KNIGHT, KNAVE), ("nor", KNIGHT, KNIGHT)])
def test_what_is_no_statement_is_refused(statement):
    with pytest.raises(ValueError, match=str(statement[0])):
        solve([statement])


@pytest.mark.parametrize(
    ("statements", "solutions"),
    [
        ((("lying", 1), ("and", KNIGHT, ("telling-truth", 2)), ("or", ("lying", 1), KNAVE)), 0),
        ((("lying", 1), ("and", KNAVE, ("telling-truth", 1))), 2),
        # Operators within operators, as data of one's own may have them.
        ((("->", ("and", ("lying", 1), ("not", KNIGHT)), ("<=>", KNIGHT, KNAVE)), KNAVE), 1),
    ],
)
def test_solve_finds_every_solution(statements, solutions):
    assert sorted(solve(statements)) == brute_force(statements)
    assert len(solve(statements)) == solutions


def test_solve_agrees_with_trying_every_assignment():
    for people in range(2, 9):
        for puzzle in generate("train", [people], 20, seed=people):
            assert solve(puzzle.statements) == brute_force(puzzle.statements) == [puzzle.solution]


def test_published_puzzles_have_the_published_solution_and_our_form():
    assert len(PUBLISHED) == 20
    for row in PUBLISHED:
        statements = _as_tuples(ast.literal_eval(row["statements"]))
        puzzle = Puzzle(tuple(row["names"]), statements, tuple(row["solution"]))
        assert solve(statements) == [puzzle.solution]
        assert puzzle.solution_text == row["solution_text_format"]
        assert difficulty(puzzle.solution_text) == str(len(row["names"]))
        head, tail = re.split(r"(?<=inhabitants: ).* (?=So who)", row["quiz"], flags=re.DOTALL)
        assert puzzle.text.startswith(head)
        assert puzzle.text.endswith(tail)
        assert spoken(puzzle.text) == spoken(row["quiz"])


def spoken(text):
    """(who, claim) of every sentence, whatever the way of speaking."""
    body = text[text.index("inhabitants: ") : text.index(" So who")].split(". ", 1)[1]
    claims = []
    for match in SPEAKING.finditer(body):
        who = next(
            match[key] for key in ("an", "bn", "cn", "dn", "en", "fn", "gn", "hn") if match[key]
        )
        claims.append((who, next(match[key] for key in "abcdefgh" if match[key])))
    assert SPEAKING.sub("", body).strip() == ""
    return claims


def test_text_by_hand():
    puzzle = Puzzle(
        ("Ava", "Ben", "Cleo"),
        (
            ("not", ("telling-truth", 1)),
            ("->", ("telling-truth", 0), ("lying", 2)),
            ("<=>", ("lying", 0), ("telling-truth", 1)),
        ),
        (True, False, True),
    )
    assert "You meet 3 inhabitants: Ava, Ben, and Cleo. " in puzzle.text
    assert spoken(puzzle.text) == [
        ("Ava", "Ben is not a knight"),
        ("Ben", "If Ava is a knight then Cleo is a knave"),
        ("Cleo", "Ava is a knave if and only if Ben is a knight"),
    ]
    assert puzzle.solution_text == "(1) Ava is a knight\n(2) Ben is a knave\n(3) Cleo is a knight"
    assert compact_prompt(puzzle) == (
        "people : Ava , Ben , Cleo ; Ava says not Ben is a knight ; "
        "Ben says if Ava is a knight then Cleo is a knave ; Cleo says Ava is a knave iff Ben is a "
        "knight ;"
    )


@pytest.mark.parametrize(
    "value", ["42", None, {"statements": "()"}, {"solution_text_format": None}, ["a"]]
)
def test_answers_of_another_form_are_refused(value):
    with refused("invalid-answer", ValueError, names=("(1) Zoey is a knight",)):
        read_answer(value)
