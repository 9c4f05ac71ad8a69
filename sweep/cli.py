"""The ``sweep`` command."""

import argparse
from collections.abc import Sequence

from loptune.extras import require
from loptune.terminal.arguments import PAGES, parse_arguments, version_text
from loptune.terminal.completion import Completions, complete
from loptune.terminal.logs import add_verbosity, set_up_logging
from loptune.terminal.main import run_main
from loptune.terminal.waiting import waiting_for_output
from sweep import mcp_server
from sweep.commands import gate, judge, noise, report, start, status, winner
from sweep.record.folder import all_sweeps
from sweep.space.file import override_keys, published_spaces

_EXAMPLES = """\
examples, in the order of work:
  sweep plan quickstart                      trials, cost and power; starts nothing
  sweep run quickstart                       train the proposed configurations
  sweep status quickstart                    from another terminal
  sweep resume quickstart                    after Ctrl-C
  sweep confirm quickstart                   the best on fresh seeds, and the verdict
  sweep report quickstart                    write the report again
  sweep export quickstart                    the winner, as a file for `trainer run`
  sweep judge runs.csv --by loss --baseline loss=grpo --score accuracy
                                             the same verdict on your own runs
  sweep gate start camp --worthwhile 0.01    a sequence of changes: keep or discard
"""
# the order of work, in which `sweep --help` lists the commands
_IN_ORDER = (
    "plan", "run", "status", "ls", "resume", "extend", "stop", "confirm", "report", "export",
    "evidence", "ui", "upload", "judge", "noise", "gate", "mcp", "study", "schema", "clean",
)  # fmt: skip
# command -> the optional package without which it cannot run
_NEEDED = {
    **dict.fromkeys(("run", "resume", "extend", "confirm", "noise"), "ray"),
    **dict.fromkeys(("evidence", "ui", "upload"), "mlflow"),
    "mcp": "mcp",
    "study": "optuna",
}
_COMPLETIONS: Completions = {
    "space": lambda _: published_spaces(),
    "overrides": lambda _: [f"{key}=" for key in override_keys()],
    "name": lambda runs_dir: [folder.name for folder in all_sweeps(runs_dir)],
}


def _values(key: str) -> list[str]:
    from trainer.commands.reference import values_of  # imported only for Tab completion

    return values_of(key.removeprefix("trainer."))


def _trainer_keys() -> list[str]:
    from trainer.config.schema import dotted_keys  # imported only for an unknown option

    return dotted_keys()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command like `call`, but print a UserError and return its exit code."""
    return run_main(lambda: call(argv))


def call(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; raise its UserError."""
    parser = build_parser()
    complete(parser, _COMPLETIONS, _values)
    arguments = parse_arguments(parser, argv, _trainer_keys, override_prefix="trainer.")
    set_up_logging(getattr(arguments, "verbosity", "normal"))
    if arguments.verb in _NEEDED:
        require(_NEEDED[arguments.verb], f"sweep {arguments.verb}")
    with waiting_for_output("working"):
        code: int = arguments.command(arguments)
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="sweep",
        description="Compare update rules, or any training settings, over several seeds: "
        "sweeps, verdicts on runs that you have, and a gate for changes.",
        epilog=f"{_EXAMPLES}\n{PAGES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(json=False)
    parser.add_argument("--version", action="version", version=version_text())
    add_verbosity(parser, shown=True)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (start, status, winner, report, judge, noise, gate, mcp_server):
        module.add_commands(commands)
    commands._choices_actions.sort(key=lambda listed: _IN_ORDER.index(listed.dest))
    for name, command in commands.choices.items():
        add_verbosity(command)
        command.set_defaults(verb=name)
    return parser
