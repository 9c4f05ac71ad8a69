"""The ``sweep`` command."""

import argparse
from collections.abc import Sequence

from sweep.commands import judge, report, start, status, winner
from trainer.shell.arguments import PAGES, parse_arguments, version_text
from trainer.shell.main import run_main


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command like `call`, but print an error and return its exit code."""
    return run_main(lambda: call(argv))


def call(argv: Sequence[str] | None = None) -> int:
    """Carry out a command and return the exit code, or raise its UserError."""
    arguments = parse_arguments(_parser(), argv, override_prefix="trainer.")
    code: int = arguments.command(arguments)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sweep", description="Find out which update rule works on a task.", epilog=PAGES
    )
    parser.set_defaults(json=False)
    parser.add_argument("--version", action="version", version=version_text())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (start, status, report, judge, winner):
        module.add_commands(commands)
    return parser
