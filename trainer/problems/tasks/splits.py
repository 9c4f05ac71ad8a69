"""Splits of generated problems."""

from typing import Literal, get_args

from loptune.errors import ConfigError

Split = Literal["train", "dev", "test"]

SPLITS: tuple[Split, ...] = get_args(Split)


def checked_split(split: str, key: str) -> Split:
    """Return the split with a name.

    Args:
        split: name of the split.
        key: setting that names it, for the error.

    Raises:
        ConfigError: there is no generated split with this name.
    """
    for name in SPLITS:
        if split == name:
            return name
    raise ConfigError(
        f"no generated split named {split}",
        key,
        f"use one of {', '.join(SPLITS)}",
        key=key,
        code="unknown-split",
    )
