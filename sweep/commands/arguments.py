"""Arguments that commands of ``sweep`` have in common."""

import argparse
from pathlib import Path

from trainer.commands.arguments import Commands


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """The folder of all runs."""
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")


def add_json(parser: argparse.ArgumentParser) -> None:
    """JSON in place of a table."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_named(commands: Commands, verb: str, text: str) -> argparse.ArgumentParser:
    """A command on one sweep of a runs folder."""
    parser = commands.add_parser(verb, help=text)
    add_runs_dir(parser)
    parser.add_argument("name", help="name of the sweep, see `sweep ls`")
    return parser
