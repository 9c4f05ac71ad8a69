"""Re-check the chain of kept changes: whether the current baseline is better than the first one.

Each change was compared only with the baseline at that time. A re-check compares today's baseline
with the first on fresh seeds of both. Scores that once decided for a change do not count. It is one
group-sequential test, like a proposal's. If a chain is not confirmed, the campaign returns to the
last confirmed baseline, and the changes kept since then count as discarded.
"""

from dataclasses import dataclass, field
from typing import Any

from dashboards.statistics import gate
from sweep.gate.arm import Arm

DUE_AFTER = 5  # kept changes since the last re-check
SEEDS_APART = 500  # distance from a baseline's first seed to the seeds of its re-check


@dataclass
class Recheck:
    """A comparison of a baseline with the first one."""

    first: Arm
    latest: Arm
    baseline: int  # index of the baseline that is checked
    first_seed: int
    asked: int = gate.FIRST_CLAIM  # seeds of both at the next interim analysis
    decision: dict[str, Any] | None = field(default=None)  # the event

    def usable_seeds(self, count: int) -> tuple[int, ...]:
        """Return the first ``count`` seeds of the re-check on which the first baseline has not
        failed.
        """
        end = self.first_seed + count + len(self.first.failed)
        return self.first.not_failed(range(self.first_seed, end))
