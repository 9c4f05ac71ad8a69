"""Arguments shared by the ``trainer`` commands."""

from collections.abc import Sequence
from typing import Annotated

from loptune.terminal.commands import Option

RunName = Annotated[str, Option("name of the run, see `trainer ls`")]
Spec = Annotated[str, Option("preset[:variant] or YAML file, see `trainer presets`")]
Overrides = Annotated[
    Sequence[str], Option("settings, e.g. algorithm.ar_alpha=0.3 max_steps=9", metavar="key=value")
]
Offline = Annotated[bool, Option("do not contact MLflow; `trainer upload` sends the record later")]
