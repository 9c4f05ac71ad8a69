"""Checks of a search space against the trainer's configuration, made before anything starts."""

from typing import TYPE_CHECKING

from trainer.config_file import YamlDocument

if TYPE_CHECKING:
    from sweep.config import SweepSpec


def check_space(spec: "SweepSpec", document: YamlDocument) -> None:
    """Refuse a space that could not run.

    Raises:
        ConfigError: the first thing that is wrong, with file, line and key.
    """
