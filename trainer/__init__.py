"""Python API for training one policy with one update rule. See docs/guides/python.md."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loptune.shadowing import find_own_packages_first, missing_attribute

if TYPE_CHECKING:
    from trainer.api import load_metrics, train
    from trainer.config.schema import TrainConfig, load_config
    from trainer.loop import Trainer
    from trainer.types import RunContext

__all__ = ["RunContext", "TrainConfig", "Trainer", "load_config", "load_metrics", "train"]

# Imported lazily: torch takes seconds to import, and most commands do not need it.
_HOMES = {
    "RunContext": "trainer.types",
    "TrainConfig": "trainer.config.schema",
    "Trainer": "trainer.loop",
    "load_config": "trainer.config.schema",
    "load_metrics": "trainer.api",
    "train": "trainer.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(missing_attribute(__name__, name))
    find_own_packages_first()
    return getattr(import_module(_HOMES[name]), name)
