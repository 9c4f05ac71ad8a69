"""The rule-based Knights-and-Knaves reward of Logic-RL [arXiv:2502.14768, section 2.2].

reward = format (+1 right form, -1 otherwise) + answer (+2 right, -1.5 read but wrong, -2 not
readable or wrong form). 3 is therefore the only score of a correct completion.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rewards.score import Score
from rewards.think_format import has_think_answer_form

MINIMUM = -3.0

_ROLE_IN_LINE = re.compile(r"\b([A-Za-z]+)\b.*?\b(knight|knave)\b", re.IGNORECASE)


def score(text: str, answer: Any) -> Score:
    """Score a completion, prefill included, against ``(1) Zoey is a knight`` on one line per
    person.

    The solution may also be a mapping that holds these lines under ``solution_text_format``.

    Raises:
        ValueError: the solution names nobody.
    """
    roles = _roles_of(answer)
    if not has_think_answer_form(text):
        return Score(-3.0, False, {"format": -1.0, "answer": -2.0}, parsed=False)
    given = _given_roles(
        text[text.find("<answer>") + len("<answer>") : text.find("</answer>")], tuple(roles)
    )
    if given is None:
        return Score(-1.0, False, {"format": 1.0, "answer": -2.0}, parsed=False)
    if given == roles:
        return Score(3.0, True, {"format": 1.0, "answer": 2.0})
    return Score(-0.5, False, {"format": 1.0, "answer": -1.5})


def share_right(text: str, answer: Any) -> Score:
    """Return the share of people whose role, as the text states it last, is right; for policies
    that find no form.

    Raises:
        ValueError: the solution names nobody.
    """
    roles = _roles_of(answer)
    stated = {name: _statement_pattern(name).findall(text) for name in roles}
    right = sum(
        bool(answers) and answers[-1].lower() == roles[name] for name, answers in stated.items()
    )
    share = right / len(roles)
    return Score(share, share == 1, {"share_right": share}, parsed=all(stated.values()))


def _roles_of(answer: Any) -> dict[str, str]:
    return _solution_roles(
        answer["solution_text_format"] if isinstance(answer, Mapping) else answer
    )


@lru_cache(maxsize=4096)
def _solution_roles(solution: str) -> dict[str, str]:
    roles = {}
    for line in solution.splitlines():
        if match := _ROLE_IN_LINE.search(line):
            roles[match[1]] = match[2].lower()
    if not roles:
        raise ValueError(
            f"not a Knights-and-Knaves solution: {solution!r}; expected lines like '(1) Zoey is a "
            "knight'"
        )
    return roles


def _given_roles(answer: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """Return the role stated for every name; None if one is missing or more roles are named than
    people.
    """
    lowered = answer.lower()
    if lowered.count("knight") + lowered.count("knave") != len(names):
        return None
    roles = {}
    for name in names:
        match = _statement_pattern(name).search(answer)
        if match is None:
            return None
        roles[name] = match[1].lower()
    return roles


@lru_cache(maxsize=4096)
def _statement_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(name)}\b\s+is\s+a\s+\b(knight|knave)\b", re.IGNORECASE)
