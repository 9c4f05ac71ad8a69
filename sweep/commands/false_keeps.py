"""The option ``--false-keeps``, which `sweep gate start` and `import` share."""

from typing import Annotated

from loptune.errors import ConfigError
from loptune.section import Positive
from loptune.terminal.commands import Option

FalseKeeps = Annotated[
    Positive, Option("bound on the expected fraction of kept changes that are not improvements")
]


def check_false_keeps(rate: float) -> None:
    """Reject a bound that is not a fraction below 1.

    Raises:
        ConfigError: the bound is 1 or more.
    """
    if not rate < 1:
        raise ConfigError(
            f"--false-keeps is a fraction, not {rate:g}",
            "command line",
            "write for example --false-keeps 0.1",
            code="false-keeps",
        )
