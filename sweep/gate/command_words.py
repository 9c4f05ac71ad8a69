"""Checks of the command line that a proposal runs."""

import shlex
from collections.abc import Sequence

from loptune.errors import ConfigError

_OPTIONS = ("--run", "--json", "--note", "--revision", "--quiet", "--verbose")


def check_words(words: Sequence[str], before: Sequence[str]) -> None:
    """Refuse a command line that cannot be what was meant.

    Args:
        words: of the proposal.
        before: of the program's own command line.

    Raises:
        ConfigError: it is one string, contains options of `sweep gate propose`, or misses the seed.
    """
    where = shlex.join(words)
    if len(words) == 1 and len(words[0].split()) > 1:
        raise ConfigError(
            "the command line is one word",
            where,
            f"write the words apart, without quotes around them: --command {words[0]}",
            code="one-word-command",
        )
    for word in words:
        if word in _OPTIONS and word not in before:
            raise ConfigError(
                f"{word} follows --command, so it would be a word of the program's command line",
                where,
                f"write {word} before --command",
                code="option-after-command",
            )
    if _has_seed(before) and not _has_seed(words):
        raise ConfigError(
            "the command has no {seed}: all its runs would be equal",
            where,
            "add the program's option of the seed, e.g. --seed '{seed}'",
            code="no-seed",
        )


def _has_seed(words: Sequence[str]) -> bool:
    return any("{seed}" in word for word in words)
