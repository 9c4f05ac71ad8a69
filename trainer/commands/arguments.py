"""Arguments shared by the ``trainer`` commands, and commands that print while they run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from loptune.terminal.arguments import ACCEPT_CHANGES, RUNS_DIR
from loptune.terminal.commands import Command, Option

RunName = Annotated[str, Option("name of the run, see `trainer ls`")]
Spec = Annotated[str, Option("preset[:variant] or YAML file, see `trainer presets`")]
Overrides = Annotated[
    Sequence[str], Option("e.g. algorithm.ar_alpha=0.3 max_steps=200", metavar="key=value")
]
RunsDir = Annotated[Path, Option(RUNS_DIR, is_path=True)]
AcceptChanges = Annotated[bool, Option(ACCEPT_CHANGES)]
Offline = Annotated[bool, Option("do not contact MLflow; `trainer upload` sends it later")]


def running_command(function: Callable[..., Any], example: str) -> Command:
    """Return the command of a function that prints while it runs and returns its exit status."""
    return Command(
        function=function,
        show=lambda code: None,
        fields=None,
        example=example,
        exit_code=lambda code: code,
    )
