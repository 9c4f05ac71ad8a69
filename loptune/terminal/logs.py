"""Set up logging for both command lines: ``--quiet``, the default, and ``--verbose``.

Results and the progress of a run or sweep are printed to stdout. Notes (INFO), warnings and errors
are logged to stderr as plain lines. With ``--verbose``, each line starts with time, level and
module, and DEBUG messages are included.
"""

import argparse
import logging
import sys
from collections.abc import Iterator
from typing import Literal

from loptune.errors import printable

Verbosity = Literal["quiet", "normal", "verbose"]

OWN_LOGGERS = ("rewards", "trainer", "dashboards", "sweep", "loptune")
LEVELS: dict[Verbosity, int] = {
    "quiet": logging.WARNING,
    "normal": logging.INFO,
    "verbose": logging.DEBUG,
}
_DETAILED = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_BARE = logging.Formatter("%(message)s")


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that writes to the current ``sys.stderr``, which may be replaced after the handler is
    created.
    """

    def __init__(self, verbosity: Verbosity) -> None:
        super().__init__(sys.stderr)
        self.verbosity = verbosity
        self.setLevel(LEVELS[verbosity])
        self.setFormatter(_DETAILED if verbosity == "verbose" else _BARE)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text with control characters escaped."""
        return printable(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        self.stream = sys.stderr
        super().emit(record)


def add_verbosity(parser: argparse.ArgumentParser, shown: bool = False) -> None:
    """Add ``--quiet`` and ``--verbose``. Subcommands accept them, too, but only the program's main
    help shows them.
    """
    # argparse of Python 3.11 cannot print the usage of a group whose options are all hidden
    group = parser.add_mutually_exclusive_group() if shown else parser
    for value, text in {
        "quiet": "print results, warnings and errors only, no progress",
        "verbose": "log to stderr at level DEBUG and above, with time, level and module",
    }.items():
        group.add_argument(
            f"--{value}",
            dest="verbosity",
            action="store_const",
            const=value,
            default=argparse.SUPPRESS,
            help=text if shown else argparse.SUPPRESS,
        )


def set_up_logging(verbosity: Verbosity) -> None:
    """Send the log of loptune's packages to stderr. A second call replaces the settings of the
    first.
    """
    handler = _Stderr(verbosity)
    for name in OWN_LOGGERS:
        logger = logging.getLogger(name)
        for earlier in list(_ours(logger)):
            logger.removeHandler(earlier)
        logger.addHandler(handler)
        logger.setLevel(LEVELS[verbosity])


def set_up_if_unset() -> None:
    """Set up logging if the calling program has not configured it."""
    if logging.root.handlers or logging.getLogger("trainer").handlers:
        return
    set_up_logging("normal")


def verbose_handlers() -> list[logging.Handler]:
    """Return the stderr handler if ``--verbose`` is set, for code that replaces handlers; otherwise
    an empty list.
    """
    handlers = list(_ours(logging.getLogger("trainer")))
    return [handler for handler in handlers if handler.verbosity == "verbose"]


def progress_is_shown() -> bool:
    """Return whether progress is shown; ``--quiet`` turns it off."""
    return all(handler.verbosity != "quiet" for handler in _ours(logging.getLogger("trainer")))


def _ours(logger: logging.Logger) -> Iterator[_Stderr]:
    for handler in logger.handlers:
        if isinstance(handler, _Stderr):
            yield handler
