"""Generated Knights-and-Knaves puzzles: which there are, which of them are the same, and the split of each.

Numbering the people of a puzzle in another order gives the same puzzle, whatever their names. There are 687
puzzles with 2 people and 145,054 with 3, statements being at most one operator over role statements; more people
have thousands of millions. Splits are drawn by puzzle, and also keep together puzzles that differ only in the
order of what ``and``, ``or`` and ``<=>`` combine.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from trainer.errors import ConfigError
from trainer.problems.tasks.knights_knaves import NAMES, OPERATORS, ROLES, Puzzle, Statement, digest, solve

Split = Literal["train", "dev", "test"]

# Of 10 equal shares of all puzzles.
_SPLIT_SHARES: dict[Split, range] = {"train": range(0, 8), "dev": range(8, 9), "test": range(9, 10)}
_UNORDERED = ("and", "or", "<=>")
_DEPTH = 2
# Puzzles by number of people where a request can exceed them: an enumeration's result, at the usual depth.
EXISTING: dict[int, dict[Split, int]] = {
    2: {"train": 550, "dev": 76, "test": 61},
    3: {"train": 116_017, "dev": 14_718, "test": 14_319},
}
_MAX_REPEATS = 2000  # in a row, where the number of puzzles is not known
_MAX_DRAWS = 20_000  # a few hundred are enough where there are puzzles at all


def canonical_form(statements: Sequence[Statement], ordered: bool = True) -> tuple[Statement, ...]:
    """The same statements for all numberings of the same people.

    Args:
        statements: of person 0, 1, ...
        ordered: False to disregard also the order of what ``and``, ``or`` and ``<=>`` combine.

    People are sorted as far as their statements tell them apart; of the numberings that are left, the one with
    the least statements is taken.
    """
    return min(
        tuple(_renumber(statements[person], numbers, ordered) for person in order)
        for order, numbers in _numberings(statements, ordered)
    )


def split_of(statements: Sequence[Statement]) -> Split:
    """The split a puzzle belongs to: 8 tenths train, 1 dev, 1 test."""
    share = int(digest(canonical_form(statements, ordered=False)), 16) % 10
    return next(split for split, shares in _SPLIT_SHARES.items() if share in shares)


def generate(split: Split, people: Sequence[int], size: int, seed: int, depth: int = _DEPTH) -> list[Puzzle]:
    """Different puzzles of one split, each with exactly one solution.

    Args:
        split: which part of all puzzles to draw from; the parts share no puzzle.
        people: numbers of people (2-8), used in turn.
        size: number of puzzles.
        seed: equal arguments give equal puzzles.
        depth: levels of a statement: 1 is role statements alone, 2 the public dataset's operators over role
            statements, more nests operators in operators.

    Raises:
        ConfigError: unknown split, people outside 2-8, or more puzzles than there are.
    """
    if split not in _SPLIT_SHARES:
        raise ConfigError(f"no split named {split}", "generated puzzles", "use train, dev or test")
    if not people or not all(2 <= count <= 8 for count in people):
        raise ConfigError(f"people must be 2 to 8, got {list(people)}", "generated puzzles", "e.g. [2, 3]")
    if depth == _DEPTH:
        _check_size(split, people, size)
    rng = random.Random(f"{split} {list(people)} {depth} {seed}")
    puzzles: dict[tuple[Statement, ...], Puzzle] = {}
    repeats = 0
    while len(puzzles) < size:
        count = people[len(puzzles) % len(people)]
        puzzle = _draw(rng, split, count, depth)
        form = canonical_form(puzzle.statements) if puzzle else ()
        if puzzle and form not in puzzles:
            puzzles[form] = puzzle
            repeats = 0
            continue
        repeats += 1
        if puzzle is None or (repeats > _MAX_REPEATS and not (depth == _DEPTH and count in EXISTING)):
            raise ConfigError(
                f"too few different {split} puzzles with {count} people exist for size {size}",
                f"generated puzzles, after {len(puzzles)} of them",
                "lower size or allow more people",
            )
    return list(puzzles.values())


def disguised(puzzle: Puzzle, rng: random.Random) -> Puzzle:
    """The same puzzle under other names and with its people numbered in another order."""
    order = rng.sample(range(len(puzzle.names)), len(puzzle.names))
    numbers = {person: number for number, person in enumerate(order)}
    return Puzzle(
        tuple(rng.sample(NAMES, len(order))),
        tuple(_renumber(puzzle.statements[person], numbers, ordered=True) for person in order),
        tuple(puzzle.solution[person] for person in order),
    )


def existing(split: Split, people: int) -> int | None:
    """How many puzzles a split has; None where they are too many to matter."""
    return EXISTING.get(people, {}).get(split)


def _check_size(split: Split, people: Sequence[int], size: int) -> None:
    turns = Counter(people)
    for count, share in turns.items():
        wanted = size // len(people) * share + people[: size % len(people)].count(count)
        there = existing(split, count)
        if there is not None and wanted > there:
            raise ConfigError(
                f"{wanted} {split} puzzles with {count} people were asked for, and only {there} exist",
                f"generated puzzles, people {list(people)}, size {size}",
                f"size at most {there * len(people) // share}, or more people, e.g. people: [{count}, 4, 5]",
            )


def _numberings(
    statements: Sequence[Statement], ordered: bool
) -> Iterator[tuple[tuple[int, ...], dict[int, int]]]:
    """Orders of the people that agree with how their statements sort them, each with everybody's number in it."""
    people = range(len(statements))
    ranks = [0] * len(statements)
    while True:
        # A statement in the ranks of those it is about; the speaker is told from others of the same rank.
        said = [
            (ranks[me], _renumber(statements[me], {who: 2 * ranks[who] + (who == me) for who in people}, ordered))
            for me in people
        ]
        levels = sorted(set(said))
        if len(levels) == len(set(ranks)):
            break
        ranks = [levels.index(one) for one in said]
    classes = [[person for person in people if ranks[person] == rank] for rank in sorted(set(ranks))]
    for parts in itertools.product(*map(itertools.permutations, classes)):
        order = tuple(itertools.chain(*parts))
        yield order, {person: number for number, person in enumerate(order)}


def _renumber(statement: Statement, numbers: dict[int, int], ordered: bool) -> Statement:
    kind = statement[0]
    if kind in ROLES:
        return (kind, numbers[statement[1]])
    parts = [_renumber(part, numbers, ordered) for part in statement[1:]]
    return (kind, *(sorted(parts) if kind in _UNORDERED and not ordered else parts))


def _draw(rng: random.Random, split: Split, people: int, depth: int) -> Puzzle | None:
    """A random puzzle of the split with one solution; None after too many tries without any."""
    for _ in range(_MAX_DRAWS):
        statements = tuple(_draw_statement(rng, person, people, depth) for person in range(people))
        solutions = solve(statements)
        if len(solutions) == 1 and split_of(statements) == split:
            return Puzzle(tuple(rng.sample(NAMES, people)), statements, solutions[0])
    return None


def _draw_statement(rng: random.Random, speaker: int, people: int, depth: int) -> Statement:
    """A statement as ``speaker`` may make it: the kinds are equally likely, as in the public dataset."""
    kind = rng.choice(("role", "not", *OPERATORS)) if depth > 1 else "role"
    if kind in OPERATORS:
        left = right = _draw_part(rng, people, depth - 1)
        while left == right:
            right = _draw_part(rng, people, depth - 1)
        return (kind, left, right)
    # "I am a knight" says nothing and "I am a knave" is impossible: a lone role is another person's.
    other = (speaker + rng.randrange(1, people)) % people
    role = (rng.choice(ROLES), other)
    return ("not", role) if kind == "not" else role


def _draw_part(rng: random.Random, people: int, depth: int) -> Statement:
    if depth > 1:
        return _draw_statement(rng, rng.randrange(people), people, depth)
    return (rng.choice(ROLES), rng.randrange(people))
