"""Command-line arguments shared by ``trainer`` and ``sweep``."""

import argparse
import platform
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

from loptune.errors import ConfigError
from loptune.yaml_document import nearest

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_NEGATIVE_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|-(inf|infinity|nan)$", re.I)
_DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    "Documentation on datasets, rewards, search spaces, clusters and the paper's "
    f"experiments: {_DOCS if _DOCS.is_dir() else 'docs/ of the repository'}"
)


def parse_arguments(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    override_keys: Callable[[], Sequence[str]],
    override_prefix: str = "",
) -> argparse.Namespace:
    """Parse a command line in which ``key=value`` overrides may also follow options.

    ``override_keys`` returns the valid keys of overrides; on the command line, ``override_prefix``
    precedes each key.

    Raises:
        ConfigError: unknown command or option. If the option is a configuration key, the hint shows
            the correct syntax.
        SystemExit: another fault of the command line, which argparse has printed, or ``--help``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _take_negative_numbers(parser)
    _check_command(parser, words)
    arguments, rest = parser.parse_known_args(words)
    unknown = next((word for word in rest if word.startswith("-")), None)
    if unknown is not None:
        hint = None
        if "overrides" in arguments:
            hint = _hint(unknown, words, override_keys(), override_prefix)
        hint = hint or _nearest_option(unknown, parser, words, arguments)
        raise ConfigError(f"unknown option {unknown}", "command line", hint, code="unknown-option")
    # argparse only assigns overrides before the first option; the rest end up in `rest`
    if rest and "overrides" not in arguments:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def _take_negative_numbers(parser: argparse.ArgumentParser) -> None:
    """Let a parser and its commands accept every negative number in Python's format, such as -1e-05
    and -inf, as a value. argparse recognizes only forms such as -1 and -0.5.
    """
    parser._negative_number_matcher = _NEGATIVE_NUMBER
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in (action.choices or {}).values():
                _take_negative_numbers(command)


def _nearest_option(
    unknown: str, parser: argparse.ArgumentParser, words: Sequence[str], arguments: object
) -> str:
    """Return a hint with the nearest option of the command, or else with the help command."""
    name = unknown.partition("=")[0].lstrip("-").replace("-", "_")
    if (parser.prog, name) == ("sweep", "dry_run"):
        return "`sweep plan` shows the trials and the cost of a sweep without starting it"
    meant = get_close_matches(name, vars(arguments), n=1)
    if meant:
        return f"did you mean --{meant[0].replace('_', '-')}?"
    command = next((word for word in words if not word.startswith("-")), "")
    return f"see `{' '.join(filter(None, (parser.prog, command)))} --help`"


def _check_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Reject an unknown command with the nearest name; argparse would list all commands.

    Raises:
        ConfigError: the first word is not a command.
    """
    given = next((word for word in words if not word.startswith("-")), None)
    for action in parser._actions:
        is_commands = isinstance(action, argparse._SubParsersAction)
        if is_commands and given is not None and given not in (action.choices or ()):
            names = list(action.choices or ())
            raise ConfigError(
                f"{parser.prog} has no command {given}",
                "command line",
                nearest(given, names),
                code="no-command",
            )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def version_text() -> str:
    """Return the package versions for bug reports, without importing the packages."""
    versions = [
        f"{name} {_version(name)}"
        for name in ("torch", "transformers", "ray", "optuna", "mlflow", "vllm")
    ]
    return (
        f"loptune {_version('loptune')} (Python {platform.python_version()}, {', '.join(versions)})"
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _hint(option: str, words: Sequence[str], keys: Sequence[str], prefix: str) -> str | None:
    """Return a hint that rewrites an option such as ``--max_steps 3`` as an override, or None if no
    key matches.
    """
    name, _, value = option.partition("=")
    if not value:
        following = words[words.index(option) + 1 :]
        value = following[0] if following and not following[0].startswith("-") else "VALUE"
    wanted = name.lstrip("-").replace("-", "_")
    key = next((key for key in keys if wanted in (key, key.rpartition(".")[2])), None)
    if key:
        return f"write {prefix}{key}={value}, without dashes"
    return None
