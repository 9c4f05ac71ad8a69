"""Tab completion (argcomplete)."""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

# argument or option -> function that returns candidates, given the runs folder
Completions = Mapping[str, Callable[[Path], Iterable[str]]]


def words_to_complete() -> Sequence[str]:
    """Return the command line's words after the program name during Tab completion, else an empty
    list.
    """
    return os.environ.get("COMP_LINE", "").split()[1:]


def complete(
    parser: argparse.ArgumentParser,
    completions: Completions,
    values: Callable[[str], Iterable[str]] = lambda key: (),
) -> None:
    """Print candidates and exit if this is Tab completion; otherwise do nothing.

    ``values`` returns the values of a configuration key.
    """
    if "_ARGCOMPLETE" not in os.environ:  # set by argcomplete's shell function
        return
    import argcomplete  # imported here, so that other starts stay fast

    files = argcomplete.FilesCompleter()

    def candidates(
        prefix: str, action: argparse.Action, parsed_args: argparse.Namespace, **_: object
    ) -> list[str]:
        argument = action.option_strings[-1] if action.option_strings else action.dest
        runs_dir = getattr(parsed_args, "runs_dir", Path("runs"))
        if argument == "overrides" and "=" in prefix:
            key = prefix.partition("=")[0]
            return [f"{key}={value}" for value in values(key)]
        names = list(completions[argument](runs_dir)) if argument in completions else []
        return (
            names if argument in ("name", "overrides", "word", "metric") else names + files(prefix)
        )

    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=candidates)
