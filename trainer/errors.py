"""The errors of a run, for programs that use `trainer` as a library; see `loptune.errors`."""

from loptune.errors import (
    ConfigError,
    MissingError,
    NameInUseError,
    RewardError,
    StorageError,
    UserError,
)

__all__ = [
    "ConfigError",
    "MissingError",
    "NameInUseError",
    "RewardError",
    "StorageError",
    "UserError",
]
