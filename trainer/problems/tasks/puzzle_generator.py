"""Generated Knights-and-Knaves puzzles: which exist, which of them are equal, and the split of
each.

Numbering the people of a puzzle in another order gives the same puzzle, whatever their names. There
are 687 puzzles with 2 people and 145,054 with 3, statements being at most one operator over role
statements; more people have thousands of millions. Puzzles are logically equal if, for some
numbering, each person's statement has the same truth table: "Ava is a knight and Ben is a knave"
asks for the same thought as "it is not the case that if Ava is a knight then Ben is a knight". Up
to logical equality there are 57 with 2 people and 3,480 with 3. Splits are drawn by it: no puzzle
of one split has a logical twin in another. Of two people 44, 6 and 7 exist in train, dev and test:
an accuracy on them is one on six or seven questions in other words.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from trainer.errors import ConfigError
from trainer.problems.tasks.knights_knaves import (
    NAMES,
    OPERATORS,
    ROLES,
    Puzzle,
    Statement,
    digest,
    knight_table,
    solve,
    truth_table,
)

Split = Literal["train", "dev", "test"]

# Of 10 equal shares of all puzzles.
_SPLIT_SHARES: dict[Split, range] = {"train": range(0, 8), "dev": range(8, 9), "test": range(9, 10)}
_SALT = 38  # one that also divides the few puzzles of two people about 8 : 1 : 1
# Puzzles by number of people where a request can exceed them: an enumeration's result.
EXISTING: dict[int, dict[Split, int]] = {
    2: {"train": 547, "dev": 74, "test": 66},
    3: {"train": 116_712, "dev": 13_544, "test": 14_798},
}

# the people that a statement's truth depends on, and its truth table over them
Meaning = tuple[tuple[int, ...], int]


def canonical_form(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return the statements (of person 0, 1, ...) in the numbering of the people that makes them
    least.

    Equal for all numberings of the same people.
    """
    return min(
        tuple(renumber(statements[person], numbers) for person in order)
        for order, numbers in _numberings(_meanings(statements))
    )


def logical_form(statements: Sequence[Statement]) -> tuple[Meaning, ...]:
    """Return the meaning of each statement, in the numbering of people that sorts first.

    Equal for puzzles that are logically equal, and for no others.
    """
    meanings = _meanings(statements)
    return min(
        tuple(_renumber_meaning(meanings[person], numbers) for person in order)
        for order, numbers in _numberings(meanings)
    )


def split_of(statements: Sequence[Statement]) -> Split:
    """Return the split a puzzle belongs to: of all logically different ones 8 tenths train, 1 dev,
    1 test.
    """
    share = int(digest((_SALT, logical_form(statements))), 16) % 10
    return next(split for split, shares in _SPLIT_SHARES.items() if share in shares)


def generate(split: Split, people: Sequence[int], size: int, seed: int = 0) -> list[Puzzle]:
    """Return different puzzles of one split, each with exactly one solution.

    The numbers of people (2-8) are used in turn. No puzzle of one split is logically equal to one
    of another.

    Raises:
        ConfigError: more puzzles than there are.
    """
    _check_size(split, people, size)
    rng = random.Random(f"{split} {list(people)} 2 {seed}")
    puzzles: dict[tuple[Statement, ...], Puzzle] = {}
    while len(puzzles) < size:
        puzzle = _draw(rng, split, people[len(puzzles) % len(people)])
        puzzles.setdefault(canonical_form(puzzle.statements), puzzle)
    return list(puzzles.values())


def existing(split: Split, people: int) -> int | None:
    """Return the number of puzzles in a split; None where there are too many to matter."""
    return EXISTING.get(people, {}).get(split)


def _check_size(split: Split, people: Sequence[int], size: int) -> None:
    turns = Counter(people)
    for count, share in turns.items():
        wanted = size // len(people) * share + people[: size % len(people)].count(count)
        there = existing(split, count)
        if there is not None and wanted > there:
            raise ConfigError(
                f"{wanted} {split} puzzles with {count} people were asked for, and only {there} "
                "exist",
                f"generated puzzles, people {list(people)}, size {size}",
                f"size at most {there * len(people) // share}, or more people, e.g. people: "
                f"[{count}, 4, 5]",
            )


def _meanings(statements: Sequence[Statement]) -> list[Meaning]:
    people = len(statements)
    return [_meaning(truth_table(statement, people), people) for statement in statements]


@lru_cache(maxsize=4096)
def _meaning(table: int, people: int) -> Meaning:
    """Return the people a truth table depends on, and the table over them alone: bit r is the truth
    of row r.
    """
    depends = tuple(
        person
        for person in range(people)
        if (table & knight_table(person, people)) >> (1 << person)
        != table & ~knight_table(person, people)
    )
    return depends, _rearranged(table, depends)


def _renumber_meaning(meaning: Meaning, numbers: Mapping[int, int]) -> Meaning:
    depends, table = meaning
    order = sorted(range(len(depends)), key=lambda bit: numbers[depends[bit]])
    return tuple(numbers[depends[bit]] for bit in order), _rearranged(table, order)


def _rearranged(table: int, places: Sequence[int]) -> int:
    """Return a truth table over fewer or other people: its person i is person places[i] of
    ``table``, where everybody else is a knave.
    """
    rearranged = 0
    for row in range(1 << len(places)):
        row_there = sum(1 << place for person, place in enumerate(places) if row >> person & 1)
        rearranged |= (table >> row_there & 1) << row
    return rearranged


def _numberings(meanings: Sequence[Meaning]) -> Iterator[tuple[tuple[int, ...], dict[int, int]]]:
    """Yield the orders of the people that agree with how their statements sort them, each with
    everybody's number in it.

    People are told apart by what does not depend on numbers: their statement's rank and the ranks
    of those it is about, again and again until nobody else is told apart. What is left is tried in
    every order.
    """
    people = range(len(meanings))
    ranks = [0] * len(meanings)
    while True:
        signatures = [(ranks[me], _signature(meanings[me], me, ranks)) for me in people]
        levels = sorted(set(signatures))
        if len(levels) == len(set(ranks)):
            break
        ranks = [levels.index(signature) for signature in signatures]
    classes = [
        [person for person in people if ranks[person] == rank] for rank in sorted(set(ranks))
    ]
    for parts in itertools.product(*map(itertools.permutations, classes)):
        order = tuple(itertools.chain(*parts))
        yield order, {person: number for number, person in enumerate(order)}


def _signature(meaning: Meaning, speaker: int, ranks: Sequence[int]) -> tuple[Any, ...]:
    """Return the number of true rows; of everybody the statement is about the rank and the true
    rows as a knight.
    """
    depends, table = meaning
    about = [
        (ranks[person], person == speaker, (table & knight_table(bit, len(depends))).bit_count())
        for bit, person in enumerate(depends)
    ]
    return table.bit_count(), tuple(sorted(about))


def renumber(statement: Statement, numbers: Mapping[int, int]) -> Statement:
    """Return a statement about people who have other numbers."""
    kind = statement[0]
    if kind in ROLES:
        return (kind, numbers[statement[1]])
    return (kind, *(renumber(part, numbers) for part in statement[1:]))


def _draw(rng: random.Random, split: Split, people: int) -> Puzzle:
    """Return a random puzzle of the split with one solution."""
    while True:
        statements = tuple(_draw_statement(rng, person, people) for person in range(people))
        solutions = solve(statements)
        if len(solutions) == 1 and split_of(statements) == split:
            return Puzzle(tuple(rng.sample(NAMES, people)), statements, solutions[0])


def _draw_statement(rng: random.Random, speaker: int, people: int) -> Statement:
    """Return a statement as ``speaker`` may make it: the kinds are equally likely, as in the public
    dataset.
    """
    kind = rng.choice(("role", "not", *OPERATORS))
    if kind in OPERATORS:
        left = right = _draw_role(rng, people)
        while left == right:
            right = _draw_role(rng, people)
        return (kind, left, right)
    # "I am a knight" says nothing and "I am a knave" is impossible: a lone role is another
    # person's.
    other = (speaker + rng.randrange(1, people)) % people
    role = (rng.choice(ROLES), other)
    return ("not", role) if kind == "not" else role


def _draw_role(rng: random.Random, people: int) -> Statement:
    return (rng.choice(ROLES), rng.randrange(people))
