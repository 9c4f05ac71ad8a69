import functools
import itertools
import re
from collections import Counter

import numpy as np
import pytest

from loptune.errors import ConfigError
from tests.refusals import refused
from tests.trainer.problems.tasks.plain_logic import holds
from trainer.problems.tasks.knights_knaves import NAMES, OPERATORS, solve
from trainer.problems.tasks.puzzle_generator import (
    PUZZLE_COUNTS,
    canonical_form,
    generate,
    logical_form,
    split_of,
)

SPLITS = ("train", "dev", "test")


def renumbered(statement, numbers):
    """A statement about person p as one about person ``numbers[p]``."""
    if isinstance(statement[1], int):
        return (statement[0], numbers[statement[1]])
    return (statement[0], *(renumbered(part, numbers) for part in statement[1:]))


def all_numberings(statements):
    """The statements of a puzzle for every numbering of its people."""
    people = range(len(statements))
    return {
        tuple(
            renumbered(statements[person], {who: order.index(who) for who in people})
            for person in order
        )
        for order in itertools.permutations(people)
    }


def truth_tables(statements):
    """Of every numbering of the people what each statement says in each of their roles, by plain
    evaluation.
    """
    assignments = list(itertools.product([False, True], repeat=len(statements)))
    return {
        tuple(tuple(holds(statement, roles) for roles in assignments) for statement in numbering)
        for numbering in all_numberings(statements)
    }


def distinct_puzzles(people):
    """One set of statements for each puzzle with exactly one solution: all are tried, all
    numberings compared.
    """
    roles = [(role, person) for role in ("telling-truth", "lying") for person in range(people)]
    compound = [
        (operator, *pair) for operator in OPERATORS for pair in itertools.permutations(roles, 2)
    ]
    statements = []
    fitting = []
    assignments = list(itertools.product([False, True], repeat=people))
    for speaker in range(people):
        others = [role for role in roles if role[1] != speaker]
        statements.append([*others, *(("not", role) for role in others), *compound])
        fits = [
            [holds(statement, roles) == roles[speaker] for roles in assignments]
            for statement in statements[-1]
        ]
        fitting.append(np.array(fits) @ (1 << np.arange(len(assignments))))
    count = len(statements[0])
    code = np.arange(count**people)
    digits = [code // count**speaker % count for speaker in range(people)]
    solutions = functools.reduce(
        np.bitwise_and, [fits[digit] for fits, digit in zip(fitting, digits, strict=True)]
    )
    least = code
    for numbers in itertools.permutations(range(people)):
        image = np.zeros_like(code)
        for speaker, digit in enumerate(digits):
            listed = statements[numbers[speaker]]
            moved = np.array(
                [listed.index(renumbered(statement, numbers)) for statement in statements[speaker]]
            )
            image += moved[digit] * count ** numbers[speaker]
        least = np.minimum(least, image)
    kept = (solutions > 0) & (solutions & (solutions - 1) == 0) & (least == code)
    return [
        tuple(statements[speaker][digit[place]] for speaker, digit in enumerate(digits))
        for place in np.flatnonzero(kept)
    ]


def test_numbering_the_people_anew_gives_the_same_form_and_split():
    for puzzle in generate("train", [2, 3, 4], 60, seed=0):
        numberings = all_numberings(puzzle.statements)
        assert {canonical_form(numbering) for numbering in numberings} == {
            canonical_form(puzzle.statements)
        }
        assert canonical_form(puzzle.statements) in numberings
        assert {split_of(numbering) for numbering in numberings} == {"train"}


def test_people_whom_nothing_tells_apart_have_one_form_too():
    # Everybody speaks of the next one, or of the one before: two circles, numbered the one way or
    # the other.
    circle = [(("lying", (i + 1) % 4)) for i in range(4)]
    backwards = [(("lying", (i - 1) % 4)) for i in range(4)]
    pairs = [("lying", 1), ("lying", 0), ("lying", 3), ("lying", 2)]
    assert canonical_form(circle) == canonical_form(backwards) != canonical_form(pairs)


@pytest.mark.parametrize(("people", "size"), [([2], 60), ([3], 300), ([4], 40)])
def test_logical_equality_is_that_of_truth_tables(people, size):
    puzzles = generate("train", people, size, seed=0)
    by_form = Counter(logical_form(puzzle.statements) for puzzle in puzzles)
    by_tables = Counter(min(truth_tables(puzzle.statements)) for puzzle in puzzles)
    assert sorted(by_form.values()) == sorted(by_tables.values())


def test_the_number_of_existing_puzzles():
    pairs = distinct_puzzles(2)
    assert len(pairs) == len(set(map(canonical_form, pairs))) == 687
    assert (
        len({min(truth_tables(puzzle)) for puzzle in pairs})
        == len(set(map(logical_form, pairs)))
        == 57
    )
    assert Counter(map(split_of, pairs)) == PUZZLE_COUNTS[2]
    different = {split: set() for split in SPLITS}
    for puzzle in pairs:
        different[split_of(puzzle)].add(logical_form(puzzle))
    assert {split: len(forms) for split, forms in different.items()} == {
        "train": 44,
        "dev": 6,
        "test": 7,
    }


@pytest.mark.slow
def test_the_number_of_existing_puzzles_of_three_in_each_split():
    puzzles = distinct_puzzles(3)
    # takes seconds, and alone decides on the split
    forms = [logical_form(puzzle) for puzzle in puzzles]
    split = {
        form: split_of(puzzle) for form, puzzle in dict(zip(forms, puzzles, strict=True)).items()
    }
    assert Counter(split[form] for form in forms) == PUZZLE_COUNTS[3]
    assert Counter(split.values()) == {"train": 2785, "dev": 349, "test": 346}


@pytest.mark.parametrize(("split", "count"), [("train", 547), ("dev", 74), ("test", 66)])
def test_all_puzzles_that_exist_can_be_had_and_not_one_more(split, count):
    puzzles = generate(split, [2], count, seed=0)
    assert len({canonical_form(puzzle.statements) for puzzle in puzzles}) == count
    with refused("too-few-exist") as caught:
        generate(split, [2], count + 1, seed=0)
    assert {str(count + 1), str(count)} <= set(re.findall(r"\d+", caught.value.what))
    assert str(count) in re.findall(r"\d+", caught.value.hint)


def test_the_number_asked_for_is_that_of_the_turns_of_each_size():
    assert Counter(len(p.names) for p in generate("test", [2, 3, 3], 197, seed=0)) == {
        2: 66,
        3: 131,
    }
    with refused("too-few-exist", ConfigError, names=("67 test", "2 people")):
        generate("test", [2, 3, 3], 199, seed=0)


def test_generated_puzzles_differ_and_have_one_solution():
    puzzles = generate("train", [2, 3], 600, seed=0)
    assert (
        len({puzzle.key for puzzle in puzzles}) == len({puzzle.text for puzzle in puzzles}) == 600
    )
    assert Counter(len(puzzle.names) for puzzle in puzzles) == {2: 300, 3: 300}
    assert all(solve(puzzle.statements) == [puzzle.solution] for puzzle in puzzles)
    assert all(
        set(puzzle.names) <= set(NAMES) and len(set(puzzle.names)) == len(puzzle.names)
        for puzzle in puzzles
    )


def test_all_statement_kinds_occur_at_the_published_depth():
    kinds = Counter(
        s[0] for puzzle in generate("train", [4], 300, seed=0) for s in puzzle.statements
    )
    assert {"not", *OPERATORS, "telling-truth", "lying"} == set(kinds)
    for puzzle in generate("train", [3], 200, seed=0):
        for statement in puzzle.statements:
            assert all(
                part[0] in ("telling-truth", "lying")
                for part in statement[1:]
                if isinstance(part, tuple)
            )


def test_equal_arguments_give_equal_puzzles_and_another_seed_others():
    first = generate("train", [3], 50, seed=0)
    assert generate("train", [3], 50, seed=0) == first
    assert len({p.key for p in generate("train", [3], 50, seed=1)} & {p.key for p in first}) == 0
