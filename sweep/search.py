"""The Searcher that turns an Optuna study into trials: baselines first, every configuration once per seed.

The ledger (``events.jsonl``) is the only state. The study is rebuilt from it for every proposal and the
sampler is seeded from (search.seed, configuration number), so a driver that was killed at any moment goes
on exactly where it would have been.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from sweep.config import SweepSpec


@dataclass(frozen=True)
class TrialKey:
    """One trial of the sweep: a configuration with one seed."""

    configuration: int
    seed: int

    @property
    def name(self) -> str:
        """Folder and run name, the same across restarts."""
        return f"c{self.configuration:03d}-s{self.seed}"


class ConfigurationSearcher(Searcher):  # type: ignore[misc]
    """Proposes (configuration, seed) pairs to Tune and tells the study how they ended.

    ``suggest`` returns ``{"trial": "c003-s0", "configuration": 3, "seed": 0, "parameters": {...},
    "overrides": {...}}``; ``overrides`` are the dotted trainer keys, seed included.
    """

    def __init__(self, spec: SweepSpec, ledger_path: Path, study_path: Path | None = None) -> None:
        raise NotImplementedError

    def reconcile(self, live: Collection[str]) -> list[TrialKey]:
        """Requeue every issued trial that has no result and whose Tune id is not in ``live``.

        Call it once after a restart, before the first ``suggest``.
        """
        raise NotImplementedError

    def halt(self) -> None:
        """No more trials; a trial stopped from now on keeps its place and runs on after ``sweep resume``."""
        raise NotImplementedError

    def suggest(self, trial_id: str) -> Any:
        """The next trial, or ``Searcher.FINISHED``."""
        raise NotImplementedError

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Record how a trial ended: COMPLETE, PRUNED (the scheduler stopped it) or FAIL."""
        raise NotImplementedError
