"""Arguments that commands of ``sweep`` have in common."""

import argparse

from trainer.commands.arguments import Commands, add_runs_dir


def add_named(commands: Commands, verb: str, text: str) -> argparse.ArgumentParser:
    """A command on one sweep of a runs folder."""
    parser = commands.add_parser(verb, help=text)
    add_runs_dir(parser)
    parser.add_argument("name", help="name of the sweep, see `sweep ls`")
    return parser
