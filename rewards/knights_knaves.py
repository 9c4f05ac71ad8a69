"""The rule-based Knights-and-Knaves reward of Logic-RL [arXiv:2502.14768, section 2.2].

reward = format (+1 if the format is right, else -1) + answer (+2 correct, -1.5 parsed but wrong, -2
unparsable or wrong format). A correct completion always scores 3.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rewards.errors import CodedValueError
from rewards.score import Score
from rewards.think_format import has_think_answer_form

MINIMUM = -3.0

_ROLE_IN_LINE = re.compile(r"\b([A-Za-z]+)\b.*?\b(knight|knave)\b", re.IGNORECASE)

_STATEMENT = r"\bis\s+a\s+(?:knight|knave)\b"
# A statement that is conditional, one of several alternatives, denied, doubted, or quoted from
# another person.
_HEDGED = re.compile(
    r"\b(?:if|iff|unless|whether|or|either|neither|nor|not|maybe|perhaps|possibly|probabl[ye]|"
    r"probability|likely|chance|could|might|suppose|supposing|assum\w+|hypothe\w+|implies|implying|"
    r"only|never|false|untrue|wrong|incorrect|impossible|cannot|contradict\w*|unknown|unclear)\b|n't\b"
    # "Zoey is a knight => Noah is a knave", "Zoey is a knight?"
    r"|\b(?:knight|knave)\b\W*?(?:\?|[-=]+>|[→⇒⟹↔⇔⟺]|\\(?:implies|iff|(?:long)?(?:left)?rightarrow))"
    # words with other uses count only in the clause of a role statement
    r"|\b(?:when|whenever|whereas|given|provided|providing|as\s+long\s+as|in\s+case|in\s+which\s+case|"
    r"otherwise|else|should|were|would|may|let|lets|let's|say|says|said|saying|claim|claims|claimed|"
    r"claiming|state|states|stated|stating|tell|tells|told|assert|asserts|asserted|accuses?|"
    r"according\s+to|no|deny|denies|denied|doubt|doubts|lie|lies)\b[^.,;:\n]{0,200}?" + _STATEMENT
)


def score(text: str, answer: Any) -> Score:
    """Score prefill + completion against a solution with one line per person: ``(1) Zoey is a
    knight``.

    The solution may also be a mapping with these lines under the key ``solution_text_format``.

    Raises:
        ValueError: the solution contains no role statement.
        KeyError: the solution is a mapping without this key.
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


def fraction_correct(text: str, answer: Any) -> Score:
    """Score the fraction of people whose last stated role is correct, in any format. This reward is
    for policies that are too weak to learn the format.

    Raises:
        ValueError: the solution contains no role statement.
    """
    roles = _roles_of(answer)
    stated = {name: _statement_pattern(name).findall(text) for name in roles}
    correct = sum(
        bool(answers) and answers[-1].lower() == roles[name] for name, answers in stated.items()
    )
    fraction = correct / len(roles)
    return Score(
        fraction, fraction == 1, {"fraction_correct": fraction}, parsed=all(stated.values())
    )


def _roles_of(answer: Any) -> dict[str, str]:
    solution = answer.get("solution_text_format") if isinstance(answer, Mapping) else answer
    roles = _solution_roles(solution) if isinstance(solution, str) else {}
    if not roles:
        raise CodedValueError(
            f"not a Knights-and-Knaves solution: {solution!r}; expected lines like '(1) Zoey is a "
            "knight'",
            code="invalid-answer",
        )
    return roles


@lru_cache(maxsize=4096)
def _solution_roles(solution: str) -> dict[str, str]:
    roles = {}
    for line in solution.splitlines():
        if match := _ROLE_IN_LINE.search(line):
            roles[match[1]] = match[2].lower()
    return roles


def _given_roles(answer: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """Return the stated role of every name, or None if the number of role words differs from the
    number of names, a name has no role, or a statement is conditional, one of several
    alternatives, denied, doubted or quoted from another person ("if Zoey is a knight ...", "Noah
    says Zoey is a knight").
    """
    lowered = answer.lower()
    if lowered.count("knight") + lowered.count("knave") != len(names):
        return None
    # a person's name may be a hedging word: May, Chance
    without_names = lowered
    for name in names:
        without_names = re.sub(rf"\b{re.escape(name.lower())}\b", "_", without_names)
    if _HEDGED.search(without_names):
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
