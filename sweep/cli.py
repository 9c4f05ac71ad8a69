"""The ``sweep`` command."""

import argparse
from collections.abc import Sequence

from sweep.commands import gate, judge, mcp, report, start, status, winner
from sweep.record.folder import all_sweeps
from sweep.space.file import override_keys, published_spaces
from trainer.shell.arguments import PAGES, parse_arguments, version_text
from trainer.shell.completion import Completions, complete
from trainer.shell.logs import add_verbosity, set_up_logging
from trainer.shell.main import run_main
from trainer.shell.waiting import waiting_for_output

_EXAMPLES = """\
examples, in the order of work:
  sweep plan quickstart       trials, cost, and what the plan can detect; starts nothing
  sweep run quickstart        train the configurations that are proposed
  sweep status quickstart     from another terminal; after Ctrl-C: sweep resume quickstart
  sweep confirm quickstart    the best on fresh seeds, and the verdict
  sweep report quickstart     write the report again
  sweep export quickstart     the winner, as a file for `trainer run`
  sweep judge runs.csv        the same verdict on runs that you already have
  sweep gate start camp       changes that come one after the other: keep or discard each
"""
_COMPLETIONS: Completions = {
    "space": lambda _: published_spaces(),
    "overrides": lambda _: [f"{key}=" for key in override_keys()],
    "name": lambda runs_dir: [folder.name for folder in all_sweeps(runs_dir)],
}


def _values(key: str) -> list[str]:
    from trainer.commands.reference import values_of  # only during Tab completion

    return values_of(key.removeprefix("trainer."))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command like `call`, but print a UserError and return its exit code."""
    return run_main(lambda: call(argv))


def call(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; raise its UserError."""
    parser = build_parser()
    complete(parser, _COMPLETIONS, _values)
    arguments = parse_arguments(parser, argv, override_prefix="trainer.")
    set_up_logging(getattr(arguments, "verbosity", "normal"))
    with waiting_for_output("working"):
        code: int = arguments.command(arguments)
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="sweep",
        description="Compare update rules on a task by sweeps of training runs.",
        epilog=f"{_EXAMPLES}\n{PAGES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(json=False)
    parser.add_argument("--version", action="version", version=version_text())
    add_verbosity(parser, shown=True)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (start, status, winner, report, judge, gate, mcp):  # in the order of work
        module.add_commands(commands)
    for command in commands.choices.values():
        add_verbosity(command)
    return parser
