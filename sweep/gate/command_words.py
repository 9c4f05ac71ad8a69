"""Checks of the command line that a proposal runs."""

import shlex
from collections.abc import Sequence

from loptune.errors import ConfigError

_OPTIONS = ("--run", "--json", "--note", "--revision", "--quiet", "--verbose")


def check_words(words: Sequence[str], before: Sequence[str]) -> None:
    """Reject a command line that is probably a mistake.

    Args:
        words: command line of the proposal.
        before: command line of the program.

    Raises:
        ConfigError: the command line is a single string, contains an option of `sweep gate
            propose` that the program's command line does not contain, or lacks the ``{seed}`` that
            the program's command line contains.
    """
    where = shlex.join(words)
    if len(words) == 1 and len(words[0].split()) > 1:
        raise ConfigError(
            "the command line is a single word",
            where,
            f"do not quote the whole command: --command {words[0]}",
            code="one-word-command",
        )
    for word in words:
        if word in _OPTIONS and word not in before:
            raise ConfigError(
                f"{word} comes after --command, so it would be passed to the program",
                where,
                f"put {word} before --command",
                code="option-after-command",
            )
    if _has_seed(before) and not _has_seed(words):
        raise ConfigError(
            "the command has no {seed}: all its runs would be identical",
            where,
            "add the program's seed option, e.g. --seed '{seed}'",
            code="no-seed",
        )


def _has_seed(words: Sequence[str]) -> bool:
    return any("{seed}" in word for word in words)
