"""Knights-and-Knaves puzzles: logic and text.

Knights always tell the truth and knaves always lie; every inhabitant makes one statement, and
exactly one assignment of roles fits all of them. Statements are nested tuples in the format of the
public dataset (https://huggingface.co/datasets/K-and-K/knights-and-knaves): ``("telling-truth",
i)`` says that person i is a knight, ``("lying", i)`` that person i is a knave, and ``("not", s)``,
``("and", s, t)``, ``("or", s, t)``, ``("->", s, t)``, ``("<=>", s, t)`` combine them.
"""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from rewards.errors import CodedValueError

Statement = tuple[Any, ...]

OPERATORS = ("and", "or", "->", "<=>")
ROLES = ("telling-truth", "lying")
PREFILL = "<think>"

# As many names as the largest puzzle has people, so that a word-level vocabulary can contain every
# phrase about every name.
NAMES = ("Ava", "Emma", "Jack", "Liam", "Mia", "Noah", "Owen", "Zoey")

SYSTEM_PROMPT = (
    "You are a helpful assistant. The assistant first thinks about the reasoning process in the "
    "mind and then provides the user with the answer. The reasoning process and answer are "
    "enclosed within <think> </think> and<answer> </answer> tags, respectively, i.e., <think> "
    "reasoning process here </think><answer> answer here </answer>.  Now the user asks you to "
    "solve a logical reasoning problem. After thinking, when you finally reach a conclusion, "
    "clearly state the identity of each character within <answer> </answer> tags. i.e., <answer> "
    "(1) Zoey is a knight\n(2) ... </answer>."
)

# The published prompts use this format for every model.
RAW_TEMPLATE = """<|im_start|>system
{system}
<|im_end|>
<|im_start|>user
{question}
<|im_end|>
<|im_start|>assistant
"""

_SPEECH_TEMPLATES = (
    '"{claim}," {name} claimed.',
    '"{claim}," {name} declared.',
    '"{claim}," {name} mentioned.',
    '"{claim}" - {name}.',
    '{name} asserted: "{claim}".',
    '{name} commented, "{claim}".',
    "{name} expressed that {claim}.",
    '{name} noted, "{claim}".',
    '{name} remarked, "{claim}".',
    '{name} said, "{claim}."',
    "{name} said that {claim}.",
    '{name} stated, "{claim}".',
    "{name} told you that {claim}.",
    '{name} was heard saying, "{claim}".',
    'According to {name}, "{claim}".',
    'As {name} put it, "{claim}".',
    'In a statement by {name}: "{claim}".',
    'In {name}\'s words: "{claim}".',
)

_PROSE = {
    "no role": "{} is not a {}",
    "not": "It is not the case that {}",
    "and": "{} and {}",
    "or": "{} or {}",
    "->": "If {} then {}",
    "<=>": "{} if and only if {}",
    "nested": "({})",
}
_COMPACT = {
    "not": "not {}",
    "and": "{} and {}",
    "or": "{} or {}",
    "->": "if {} then {}",
    "<=>": "{} iff {}",
    "nested": "( {} )",
}

_ROLE = re.compile(r"\bis a (?:knight|knave)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Puzzle:
    """A puzzle with its unique solution; ``solution[i]`` is True if ``names[i]`` is a knight."""

    names: tuple[str, ...]
    statements: tuple[Statement, ...]
    solution: tuple[bool, ...]

    @cached_property
    def key(self) -> str:
        """Hash of names and statements, independent of the wording."""
        return digest((self.names, self.statements))

    @cached_property
    def text(self) -> str:
        """The puzzle text in the wording of the public dataset. The phrasing of each statement is
        seeded by the key.
        """
        rng = random.Random(self.key)
        spoken = []
        for name, statement in zip(self.names, self.statements, strict=True):
            template = rng.choice(_SPEECH_TEMPLATES)
            claim = _claim(statement, self.names, _PROSE)
            spoken.append(template.format(name=name, claim=claim))
        return (
            "A very special island is inhabited only by knights and knaves. Knights always tell "
            f"the truth, and knaves always lie. You meet {len(self.names)} inhabitants: "
            f"{_enumerate(self.names)}. {' '.join(spoken)} So who is a knight and who is a knave?"
        )

    @property
    def solution_text(self) -> str:
        """The expected answer, one line per person: ``(1) Zoey is a knight``."""
        roles = map(role_statement, self.names, self.solution)
        return "\n".join(f"({number}) {role}" for number, role in enumerate(roles, start=1))


def role_statement(name: str, knight: bool) -> str:
    """Return ``Ava is a knight`` or ``Ava is a knave``."""
    return f"{name} is a knight" if knight else f"{name} is a knave"


def compact_prompt(puzzle: Puzzle) -> str:
    """Return a compact form with space-separated words, for word-level tokenizers.

    ``people : Ava , Ben ; Ava says not Ben is a knave ; Ben says if Ava is a knight then Ben is a
    knave ;`` Role statements are always the whole phrase of ``role_statement``.
    """
    parts = ["people : " + " , ".join(puzzle.names)]
    for name, statement in zip(puzzle.names, puzzle.statements, strict=True):
        parts.append(f"{name} says {_claim(statement, puzzle.names, _COMPACT)}")
    return " ; ".join(parts) + " ;"


def read_answer(value: Any) -> str:
    """Return the solution text, one ``(1) Zoey is a knight`` per line, from a string or the public
    dataset's mapping.

    Raises:
        ValueError: invalid solution.
    """
    text = value.get("solution_text_format") if isinstance(value, Mapping) else value
    if not isinstance(text, str) or not _ROLE.search(text):
        raise CodedValueError(
            "expected a solution such as '(1) Zoey is a knight', one person per line",
            code="invalid-answer",
        )
    return text


def difficulty(solution_text: str) -> str:
    """Return the number of people as text."""
    return str(len(_ROLE.findall(solution_text)))


def solve(statements: Sequence[Statement]) -> list[tuple[bool, ...]]:
    """Return all role assignments in which exactly the knights' statements are true.

    Truth tables are integers with one bit per assignment, so 8 people need only a few 256-bit
    operations per statement.
    """
    people = len(statements)
    consistent = _all_rows(people)
    for person, statement in enumerate(statements):
        disagreeing = truth_table(statement, people) ^ knight_table(person, people)
        consistent &= ~disagreeing
    solutions = []
    for row in range(1 << people):
        if consistent >> row & 1:
            solutions.append(tuple(bool(row >> person & 1) for person in range(people)))
    return solutions


def digest(content: Any) -> str:
    """Return a process-independent hash of nested tuples of strings and numbers."""
    return hashlib.blake2b(repr(content).encode(), digest_size=8).hexdigest()


@lru_cache(maxsize=64)
def knight_table(person: int, people: int) -> int:
    """Return a bit mask whose bit r is set if the person is a knight in row r of the truth
    table.
    """
    return sum(1 << row for row in range(1 << people) if row >> person & 1)


def _all_rows(people: int) -> int:
    return (1 << (1 << people)) - 1


def truth_table(statement: Statement, people: int) -> int:
    """Return a bit mask whose bit r is the truth value of the statement when bit i of r says
    whether person i is a knight.

    Raises:
        ValueError: unknown kind of statement.
    """
    kind = statement[0]
    if kind == "telling-truth":
        return knight_table(statement[1], people)
    if kind == "lying":
        return _all_rows(people) & ~knight_table(statement[1], people)
    left = truth_table(statement[1], people)
    if kind == "not":
        return _all_rows(people) & ~left
    right = truth_table(statement[2], people)
    combined = {
        "and": left & right,
        "or": left | right,
        "->": ~left | right,
        "<=>": ~(left ^ right),
    }
    if kind not in combined:
        raise ValueError(f"invalid statement: {statement!r}")
    return _all_rows(people) & combined[kind]


def _enumerate(names: Sequence[str]) -> str:
    if len(names) == 2:
        return f"{names[0]} and {names[1]}"
    return ", ".join(names[:-1]) + f", and {names[-1]}"


def _claim(
    statement: Statement, names: Sequence[str], wording: Mapping[str, str], nested: bool = False
) -> str:
    kind, *parts = statement
    if kind in ROLES:
        return role_statement(names[parts[0]], kind == "telling-truth")
    if kind == "not" and parts[0][0] in ROLES and "no role" in wording:
        role, person = parts[0]
        return wording["no role"].format(
            names[person], "knight" if role == "telling-truth" else "knave"
        )
    if kind not in wording:
        raise ValueError(f"invalid statement: {statement!r}")
    text = wording[kind].format(*(_claim(part, names, wording, nested=True) for part in parts))
    return wording["nested"].format(text) if nested else text
