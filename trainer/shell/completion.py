"""Completion of command lines by the Tab key, for which a shell starts the program."""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

# argument or option -> the names that may stand there, given the folder of all runs
Completions = Mapping[str, Callable[[Path], Iterable[str]]]


def words_to_complete() -> Sequence[str]:
    """Return the words behind the program's name, if a shell asks to complete them."""
    return os.environ.get("COMP_LINE", "").split()[1:]


def complete(parser: argparse.ArgumentParser, completions: Completions) -> None:
    """Answer a shell that asks what may follow, and end the process; else do nothing."""
    if "_ARGCOMPLETE" not in os.environ:  # the shell sets it
        return
    import argcomplete  # would delay every other start

    files = argcomplete.FilesCompleter()

    def candidates(
        prefix: str, action: argparse.Action, parsed_args: argparse.Namespace, **_: object
    ) -> list[str]:
        argument = action.option_strings[-1] if action.option_strings else action.dest
        runs_dir = getattr(parsed_args, "runs_dir", Path("runs"))
        names = list(completions[argument](runs_dir)) if argument in completions else []
        return names if argument in ("name", "overrides") else names + files(prefix)

    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=candidates)
