"""Worked examples by a deliberately sloppy teacher, from which the built-in tiny model learns.

The teacher assumes roles, checks one statement after another, and continues with the next
assumption at the first contradiction, like a binary counter::

    <think> assume Ava knight Ben knave Ava not Ben is a knave true so false Ava knight
    contradiction assume Ava knave ... fits</think><answer>(1) Ava is a knave
    (2) Ben is a knave</answer>

Some truth values and conclusions are wrong, and the following steps build on them. The model
imitates these errors, so reinforcement learning has something to correct.
"""

import itertools
import random

from tokenizers import AddedToken
from transformers import Qwen2Tokenizer

from trainer.problems.tasks.knights_knaves import NAMES, PREFILL, Puzzle, Statement, role_statement

PAD = "<pad>"
UNKNOWN = "<unk>"
END = "<|end|>"
_TAGS = (PREFILL, "</think>", "<answer>", "</answer>")
_NUMBERS = tuple(f"({number})" for number in range(1, 9))
_WORDS = (":", ",", ";", "says", "not", "and", "or", "iff", "if", "then", "(", ")")
_WORKINGS = ("assume", "true", "false", "so true", "so false", "fits", "contradiction")
_OPERATOR_WORDS = {"and": "and", "or": "or", "<=>": "iff", "->": "then"}


def vocabulary() -> list[str]:
    """Return all tokens in the order of their ids.

    A word includes the space before it, so that decoding is a plain concatenation.
    """
    names = [f" {name}" for name in NAMES]
    roles = [
        f" {say(name, knight)}"
        for say in (role_statement, _assumed)
        for name in NAMES
        for knight in (True, False)
    ]
    return [
        PAD,
        UNKNOWN,
        END,
        *_TAGS,
        "\n",
        *_NUMBERS,
        "people",
        *(f" {word}" for word in (*_WORDS, *_WORKINGS)),
        *names,
        *roles,
    ]


def build_tokenizer() -> Qwen2Tokenizer:
    """Return a word-level tokenizer in which a complete role statement (`` Ava is a knight``) is
    one token.

    `AutoTokenizer` loads every Qwen2 folder as Qwen2Tokenizer, whose byte-level BPE would split the
    words. So all words are added tokens, which are matched before BPE (longest first). Text outside
    of the vocabulary is dropped.
    """
    tokens = vocabulary()
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        unk_token=UNKNOWN,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        loptune_compact_prompts=True,
    )
    special = tokenizer.all_special_tokens
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token in tokens if token not in special]
    )
    return tokenizer


def demonstration(
    puzzle: Puzzle, rng: random.Random, value_error: float, verdict_error: float
) -> str:
    """Return the sloppy teacher's completion of ``compact_prompt(puzzle) + PREFILL``, without the
    end token.

    Truth values of role statements are wrong with probability ``value_error``. "fits" and
    "contradiction" are exchanged with probability ``verdict_error``.
    """
    words: list[str] = []
    assumption: tuple[bool, ...] = ()
    for assumption in itertools.product((True, False), repeat=len(puzzle.names)):
        words += ["assume", *map(_assumed, puzzle.names, assumption)]
        for speaker, statement in enumerate(puzzle.statements):
            checked, value = _check(puzzle, statement, assumption, rng, value_error)
            fits = (value == assumption[speaker]) != (rng.random() < verdict_error)
            words += [
                puzzle.names[speaker],
                *checked,
                _assumed(puzzle.names[speaker], assumption[speaker]),
            ]
            words.append("fits" if fits else "contradiction")
            if not fits:
                break
        else:
            break
    # If no assumption fits, the last one is the answer: a guess as good as any other.
    answer = "\n".join(
        f"({i}) {role}"
        for i, role in enumerate(map(role_statement, puzzle.names, assumption), start=1)
    )
    return f" {' '.join(words)}</think><answer>{answer}</answer>"


def _assumed(name: str, knight: bool) -> str:
    """Return an assumed role, in other words than a statement of a person."""
    return f"{name} {'knight' if knight else 'knave'}"


def _check(
    puzzle: Puzzle,
    statement: Statement,
    assumption: tuple[bool, ...],
    rng: random.Random,
    error: float,
) -> tuple[list[str], bool]:
    """Return the words that evaluate a statement, and the resulting truth value."""

    def role(part: Statement) -> tuple[list[str], bool]:
        kind, person = part
        value = (assumption[person] == (kind == "telling-truth")) != (rng.random() < error)
        return [role_statement(puzzle.names[person], kind == "telling-truth"), _word(value)], value

    match statement:
        case ("telling-truth" | "lying", _):
            words, value = role(statement)
        case ("not", part):
            words, value = role(part)
            words = ["not", *words]
            value = not value
        case (operator, left, right):
            left_words, left_value = role(left)
            right_words, right_value = role(right)
            words = [*left_words, _OPERATOR_WORDS[operator], *right_words]
            if operator == "->":
                words.insert(0, "if")
            value = {
                "and": left_value and right_value,
                "or": left_value or right_value,
                "->": not left_value or right_value,
                "<=>": left_value == right_value,
            }[operator]
        case _:
            raise ValueError(f"invalid statement: {statement!r}")
    return [*words, f"so {_word(value)}"], value


def _word(value: bool) -> str:
    return "true" if value else "false"
