"""Train a policy, sweep update rules, and judge runs of any program, from Python.

    import loptune as lt

    run = lt.train("tiny_kk", {"max_steps": 5}, name="first")
    trials = lt.sweep("quickstart", name="demo")
    print(lt.judge(trials, by=["algorithm.ar_alpha"], ...))

docs/guides/python.md has examples. Each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loptune.shadowing import find_own_packages_first

if TYPE_CHECKING:
    from dashboards.judging import Judgement
    from loptune.errors import ConfigError, MissingError, StorageError, UserError
    from loptune.reporting import report
    from rewards.score import Score
    from sweep.api import load_results
    from sweep.api import run as sweep
    from sweep.commands import gate
    from sweep.commands.judge import judge
    from sweep.commands.noise import Noise, noise
    from sweep.commands.status import status
    from trainer.api import load_metrics, train
    from trainer.commands.runs import RunSummary
    from trainer.config.schema import TrainConfig, load_config
    from trainer.loop import Trainer
    from trainer.types import RunContext

__all__ = [
    "ConfigError",
    "Judgement",
    "MissingError",
    "Noise",
    "RunContext",
    "RunSummary",
    "Score",
    "StorageError",
    "TrainConfig",
    "Trainer",
    "UserError",
    "gate",
    "judge",
    "load_config",
    "load_metrics",
    "load_results",
    "noise",
    "report",
    "status",
    "sweep",
    "train",
]

# name -> (module, name in the module; "" for the module itself)
_HOMES = {
    "ConfigError": ("loptune.errors", "ConfigError"),
    "Judgement": ("dashboards.judging", "Judgement"),
    "MissingError": ("loptune.errors", "MissingError"),
    "Noise": ("sweep.commands.noise", "Noise"),
    "RunContext": ("trainer.types", "RunContext"),
    "RunSummary": ("trainer.commands.runs", "RunSummary"),
    "Score": ("rewards.score", "Score"),
    "StorageError": ("loptune.errors", "StorageError"),
    "TrainConfig": ("trainer.config.schema", "TrainConfig"),
    "Trainer": ("trainer.loop", "Trainer"),
    "UserError": ("loptune.errors", "UserError"),
    "gate": ("sweep.commands.gate", ""),
    "judge": ("sweep.commands.judge", "judge"),
    "load_config": ("trainer.config.schema", "load_config"),
    "load_metrics": ("trainer.api", "load_metrics"),
    "load_results": ("sweep.api", "load_results"),
    "noise": ("sweep.commands.noise", "noise"),
    "report": ("loptune.reporting", "report"),
    "status": ("sweep.commands.status", "status"),
    "sweep": ("sweep.api", "run"),
    "train": ("trainer.api", "train"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    if not module.startswith("loptune."):  # reporting must work next to a user's own trainer.py
        find_own_packages_first()
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
