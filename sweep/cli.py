"""The ``sweep`` command."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweep.commands.report import add_report, add_ui, add_upload
from sweep.commands.start import add_extend, add_plan, add_resume, add_run
from sweep.commands.status import add_ls, add_status, add_stop
from sweep.commands.winner import add_confirm, add_decide, add_export
from trainer.commands.arguments import PAGES, parse_arguments, version_text
from trainer.errors import INTERRUPTED, UserError
from trainer.files import storage_fault

if TYPE_CHECKING:
    from sweep.runner import Options


def main(argv: Sequence[str] | None = None, options: "Options | None" = None) -> int:
    """Entry point; returns the exit code, and prints what is wrong. Arguments as of `call`."""
    try:
        return call(argv, options)
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has gone, as in `sweep status X | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        fault = storage_fault(error)
        if fault is None:
            raise
        print(fault, file=sys.stderr, flush=True)
        return fault.exit_code


def call(argv: Sequence[str] | None = None, options: "Options | None" = None) -> int:
    """Carry out a command and return the exit code.

    Args:
        argv: arguments; those of the process if None.
        options: how sweeps run, apart from what the arguments say; as usual if None.

    Raises:
        UserError: what keeps the command from doing its work.
    """
    arguments = parse_arguments(_parser(), argv, override_prefix="trainer.")
    arguments.options = options
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
        add_run,
        add_resume,
        add_extend,
        add_status,
        add_stop,
        add_ls,
        add_report,
        add_upload,
        add_confirm,
        add_decide,
        add_export,
        add_ui,
    ):
        add_command(commands)
    return parser
