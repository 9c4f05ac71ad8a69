"""What the ``trainer`` and the ``sweep`` command have in common."""

import argparse
from collections.abc import Sequence
from pathlib import Path

_DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    "Data sets, rewards, search spaces, clusters and the paper's experiments have pages in "
    f"{_DOCS if _DOCS.is_dir() else 'docs/ of the repository'}"
)


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line on which ``key=value`` overrides may also stand after options."""
    arguments, rest = parser.parse_known_args(argv)
    # argparse takes all overrides before the first option and leaves those behind it over.
    if rest and ("overrides" not in arguments or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def count(text: str) -> int:
    """A whole number from 1 on, as the type of an argument."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number
