"""The ``sweep`` command."""

import argparse
from collections.abc import Sequence

from sweep.commands.judge import add_judge
from sweep.commands.report import add_evidence, add_report, add_ui, add_upload
from sweep.commands.slurm import add_slurm
from sweep.commands.start import add_extend, add_plan, add_resume, add_run, add_schema
from sweep.commands.status import add_clean, add_ls, add_status, add_stop, add_study
from sweep.commands.winner import add_confirm, add_export
from trainer.shell.arguments import PAGES, parse_arguments, version_text
from trainer.shell.main import run_main


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; like `call`, but prints an error and returns its exit code."""
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
    for add_command in (
        add_plan,
        add_schema,
        add_run,
        add_slurm,
        add_resume,
        add_extend,
        add_status,
        add_stop,
        add_clean,
        add_ls,
        add_study,
        add_report,
        add_evidence,
        add_judge,
        add_upload,
        add_confirm,
        add_export,
        add_ui,
    ):
        add_command(commands)
    return parser
