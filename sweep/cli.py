"""The ``sweep`` command."""

import argparse
from collections.abc import Sequence

from sweep.commands import judge, report, start, status, winner
from sweep.record.folder import all_sweeps
from sweep.space.file import override_keys, published_spaces
from trainer.shell.arguments import PAGES, parse_arguments, version_text
from trainer.shell.completion import Completions, complete
from trainer.shell.logs import add_verbosity, set_up_logging
from trainer.shell.main import run_main

_COMPLETIONS: Completions = {
    "space": lambda _: published_spaces(),
    "overrides": lambda _: [f"{key}=" for key in override_keys()],
    "name": lambda runs_dir: [folder.name for folder in all_sweeps(runs_dir)],
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command like `call`, but print a UserError and return its exit code."""
    return run_main(lambda: call(argv))


def call(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; raise its UserError."""
    parser = _parser()
    complete(parser, _COMPLETIONS)
    arguments = parse_arguments(parser, argv, override_prefix="trainer.")
    set_up_logging(getattr(arguments, "verbosity", "normal"))
    code: int = arguments.command(arguments)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sweep",
        description="Compare update rules on a task by sweeps of training runs.",
        epilog=PAGES,
    )
    parser.set_defaults(json=False)
    parser.add_argument("--version", action="version", version=version_text())
    add_verbosity(parser, shown=True)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (start, status, report, judge, winner):
        module.add_commands(commands)
    for command in commands.choices.values():
        add_verbosity(command)
    return parser
