"""Re-check the chain of kept changes: test whether the current baseline is better than the first
one.

Each change was compared only with the baseline at that time. A re-check compares the current
baseline with the first one on fresh seeds, without the scores that led to earlier decisions. It is
a group-sequential test, like the test of a proposal. If the chain is not confirmed, the campaign
returns to the last confirmed baseline, and the changes kept since then are discarded.
"""

from dataclasses import dataclass, field
from typing import Any

from dashboards.statistics.gate import FIRST_CLAIM
from sweep.gate.arm import Arm
from sweep.gate.seeds import Seeds

DUE_AFTER = 5  # number of kept changes after which the next re-check is due
# distance from the number of a baseline's first run to the number of its re-check's first run
SEEDS_APART = 500


@dataclass
class Recheck:
    """A comparison of the current baseline with the first one."""

    first: Arm
    latest: Arm
    baseline: int  # index of the current baseline
    first_number: int  # number of the re-check's first run
    seeds: Seeds
    asked: int = FIRST_CLAIM  # seeds per baseline at the next interim analysis
    decision: dict[str, Any] | None = field(default=None)  # event that decided the re-check

    def usable_seeds(self, count: int) -> tuple[int, ...]:
        """Return the first ``count`` seeds of the re-check on which the first baseline has not
        failed.
        """
        end = self.first_number + count + len(self.first.failed)
        return self.first.not_failed(map(self.seeds.of, range(self.first_number, end)))[:count]
