"""Splits of generated problems."""

from typing import Literal, get_args

Split = Literal["train", "dev", "test"]

SPLITS: tuple[Split, ...] = get_args(Split)
