"""A configuration of a campaign and its runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

ArmName = Literal["baseline", "proposal", "first"]
BASELINE: Final = "baseline"  # arm names that `sweep gate record` accepts
PROPOSAL: Final = "proposal"
FIRST: Final = "first"  # the first baseline, in a re-check


@dataclass
class Arm:
    """A configuration and its runs."""

    settings: dict[str, Any]
    command: list[str] | None = None
    revision: str | None = None
    note: str = ""
    # path -> SHA-256 of the program's files, if the configuration does not run in a checkout
    files: dict[str, str] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # seed -> reason
    # metric of a guard -> seed -> value, for every seed with a score
    guards: dict[str, dict[int, float]] = field(default_factory=dict)
    # seeds whose results were recorded by hand in a campaign that runs a program
    by_hand: list[int] = field(default_factory=list)

    @property
    def program(self) -> tuple[dict[str, Any], list[str] | None, str | None]:
        """Settings, command and revision of the configuration's runs."""
        return self.settings, self.command, self.revision

    def values(self, metric: str | None) -> dict[int, float]:
        """Return the values of a guard by seed, or the scores if ``metric`` is None."""
        return self.scores if metric is None else self.guards.get(metric, {})

    def add(self, seed: int, score: float | None, reason: str, guards: Mapping[str, float]) -> None:
        """Add the result of a run.

        Args:
            seed: seed of the run.
            score: score of the run; None if it failed.
            reason: why it failed.
            guards: metric of a guard -> value, for a run with a score.
        """
        if score is None:
            self.failed[seed] = reason
            return
        self.scores[seed] = score
        for metric, value in guards.items():
            self.guards.setdefault(metric, {})[seed] = value

    def missing(self, seeds: Iterable[int]) -> tuple[int, ...]:
        """Return the seeds on which the configuration has no result, in the given order."""
        return self.not_failed(seed for seed in seeds if seed not in self.scores)

    def not_failed(self, seeds: Iterable[int]) -> tuple[int, ...]:
        """Return the seeds on which the configuration has not failed, in the given order."""
        return tuple(seed for seed in seeds if seed not in self.failed)

    def again(self) -> "Arm":
        """Return the configuration without its runs."""
        return Arm(self.settings, self.command, self.revision, self.note, self.files)
