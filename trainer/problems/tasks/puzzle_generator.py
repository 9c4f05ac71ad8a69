"""Generator of Knights-and-Knaves puzzles: enumeration, equivalence and splits.

Puzzles that differ only in names or in the order of people are the same. With statements of at most
one operator over role statements, there are 687 puzzles with 2 people, 145,054 with 3, and billions
with more. Puzzles are logically equivalent if, for some numbering, each person's statement has the
same truth table: "Ava is a knight and Ben is a knave" is equivalent to "it is not the case that if
Ava is a knight then Ben is a knight". Up to logical equivalence there are 57 puzzles with 2 people
and 3,480 with 3. Splits are assigned per equivalence class, so no puzzle has an equivalent in
another split. For two people, train, dev and test contain 44, 6 and 7 classes: accuracy on dev or
test is measured on only six or seven distinct questions.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from loptune.errors import ConfigError
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
from trainer.problems.tasks.splits import Split

# tenths of the hash space
_SPLIT_BUCKETS: dict[Split, range] = {
    "train": range(0, 8),
    "dev": range(8, 9),
    "test": range(9, 10),
}
_SALT = 38  # chosen so that even the few two-person puzzles split about 8 : 1 : 1
# enumerated number of puzzles, for those numbers of people where a request can exceed it
PUZZLE_COUNTS: dict[int, dict[Split, int]] = {
    2: {"train": 547, "dev": 74, "test": 66},
    3: {"train": 116_712, "dev": 13_544, "test": 14_798},
}

# (people that the statement depends on, truth table over them)
ReducedTable = tuple[tuple[int, ...], int]


def canonical_form(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return the statements (of person 0, 1, ...) under the numbering of people that sorts first
    among the candidates of `_numberings`.

    The result is invariant under renumbering of the people.
    """
    forms = []
    for order, numbers in _numberings(_meanings(statements)):
        forms.append(tuple(renumber(statements[person], numbers) for person in order))
    return min(forms)


def logical_form(statements: Sequence[Statement]) -> tuple[ReducedTable, ...]:
    """Return the truth table of each statement, under the numbering that sorts first among the
    candidates of `_numberings`.

    The forms of two puzzles are equal if and only if the puzzles are logically equivalent.
    """
    meanings = _meanings(statements)
    forms = []
    for order, numbers in _numberings(meanings):
        forms.append(tuple(_renumber_meaning(meanings[person], numbers) for person in order))
    return min(forms)


def split_of(statements: Sequence[Statement]) -> Split:
    """Return a puzzle's split: 80% of equivalence classes train, 10% dev, 10% test."""
    bucket = int(digest((_SALT, logical_form(statements))), 16) % 10
    return next(split for split, buckets in _SPLIT_BUCKETS.items() if bucket in buckets)


def generate(split: Split, people: Sequence[int], size: int, seed: int = 0) -> list[Puzzle]:
    """Return distinct puzzles of one split, each with a unique solution.

    Cycles through the numbers of people (2-8). No puzzle is logically equivalent to one of another
    split.

    Raises:
        ConfigError: ``size`` exceeds the number of existing puzzles.
    """
    _check_size(split, people, size)
    rng = random.Random(f"{split} {list(people)} 2 {seed}")
    puzzles: dict[tuple[Statement, ...], Puzzle] = {}
    while len(puzzles) < size:
        puzzle = _draw(rng, split, people[len(puzzles) % len(people)])
        puzzles.setdefault(canonical_form(puzzle.statements), puzzle)
    return list(puzzles.values())


def existing(split: Split, people: int) -> int | None:
    """Return the number of puzzles in a split, or None if it is practically unlimited."""
    return PUZZLE_COUNTS.get(people, {}).get(split)


def _check_size(split: Split, people: Sequence[int], size: int) -> None:
    turns = Counter(people)
    for count, times in turns.items():
        wanted = size // len(people) * times + people[: size % len(people)].count(count)
        available = existing(split, count)
        if available is not None and wanted > available:
            raise ConfigError(
                f"requested {wanted} {split} puzzles with {count} people, but only {available} "
                "exist",
                f"generated puzzles, people {list(people)}, size {size}",
                f"set size to at most {available * len(people) // times}, or use more people, e.g. "
                f"people: [{count}, 4, 5]",
                code="too-few-exist",
            )


def _meanings(statements: Sequence[Statement]) -> list[ReducedTable]:
    people = len(statements)
    return [_meaning(truth_table(statement, people), people) for statement in statements]


@lru_cache(maxsize=4096)
def _meaning(table: int, people: int) -> ReducedTable:
    """Return the people that a truth table depends on, and the table restricted to them."""
    depends = []
    for person in range(people):
        knights = knight_table(person, people)
        if_knight = (table & knights) >> (1 << person)
        if_knave = table & ~knights
        if if_knight != if_knave:
            depends.append(person)
    return tuple(depends), _project(table, depends)


def _renumber_meaning(meaning: ReducedTable, numbers: Mapping[int, int]) -> ReducedTable:
    depends, table = meaning
    order = sorted(range(len(depends)), key=lambda bit: numbers[depends[bit]])
    return tuple(numbers[depends[bit]] for bit in order), _project(table, order)


def _project(table: int, places: Sequence[int]) -> int:
    """Return the truth table over ``places``: person i of the result is person places[i] of
    ``table``, and all others are knaves.
    """
    rearranged = 0
    for row in range(1 << len(places)):
        row_there = sum(1 << place for person, place in enumerate(places) if row >> person & 1)
        rearranged |= (table >> row_there & 1) << row
    return rearranged


def _numberings(
    meanings: Sequence[ReducedTable],
) -> Iterator[tuple[tuple[int, ...], dict[int, int]]]:
    """Yield candidate orders of the people, each with the number of every person.

    People are ranked by numbering-independent signatures (their statement and the ranks of the
    people it mentions), refined until stable. People with equal rank are permuted in all ways.
    """
    people = range(len(meanings))
    ranks = [0] * len(meanings)
    while True:
        signatures = [(ranks[me], _signature(meanings[me], me, ranks)) for me in people]
        sorted_signatures = sorted(set(signatures))
        if len(sorted_signatures) == len(set(ranks)):
            break
        ranks = [sorted_signatures.index(signature) for signature in signatures]
    classes: dict[int, list[int]] = {rank: [] for rank in sorted(set(ranks))}
    for person in people:
        classes[ranks[person]].append(person)
    for parts in itertools.product(*map(itertools.permutations, classes.values())):
        order = tuple(itertools.chain(*parts))
        yield order, {person: number for number, person in enumerate(order)}


def _signature(meaning: ReducedTable, speaker: int, ranks: Sequence[int]) -> tuple[Any, ...]:
    """Return a numbering-independent signature: the number of true rows, and for each person the
    statement depends on, the rank and the number of true rows in which that person is a knight.
    """
    depends, table = meaning
    about = []
    for bit, person in enumerate(depends):
        true_if_knight = (table & knight_table(bit, len(depends))).bit_count()
        about.append((ranks[person], person == speaker, true_if_knight))
    return table.bit_count(), tuple(sorted(about))


def renumber(statement: Statement, numbers: Mapping[int, int]) -> Statement:
    """Return the statement with renumbered people."""
    kind = statement[0]
    if kind in ROLES:
        return (kind, numbers[statement[1]])
    return (kind, *(renumber(part, numbers) for part in statement[1:]))


def _draw(rng: random.Random, split: Split, people: int) -> Puzzle:
    """Generate a random puzzle of the split with a unique solution."""
    while True:
        statements = tuple(_draw_statement(rng, person, people) for person in range(people))
        solutions = solve(statements)
        if len(solutions) == 1 and split_of(statements) == split:
            return Puzzle(tuple(rng.sample(NAMES, people)), statements, solutions[0])


def _draw_statement(rng: random.Random, speaker: int, people: int) -> Statement:
    """Generate a random statement by ``speaker``. All kinds are equally likely, as in the public
    dataset.
    """
    kind = rng.choice(("role", "not", *OPERATORS))
    if kind in OPERATORS:
        left = right = _draw_role(rng, people)
        while left == right:
            right = _draw_role(rng, people)
        return (kind, left, right)
    # "I am a knight" is uninformative and "I am a knave" is contradictory, so a single role
    # statement is about someone else.
    other = (speaker + rng.randrange(1, people)) % people
    role = (rng.choice(ROLES), other)
    return ("not", role) if kind == "not" else role


def _draw_role(rng: random.Random, people: int) -> Statement:
    return (rng.choice(ROLES), rng.randrange(people))
