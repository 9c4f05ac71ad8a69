"""Determine how two arms can be compared from their seeds, and test a single difference."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from scipy import special

from dashboards.statistics.difference import Difference, Layout, outcome_of
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL, level

Pairing = Literal["auto", "paired", "unpaired"]
ArmScores = Mapping[Hashable, float]

# a paired comparison needs at least this fraction of the smaller arm's seeds to be shared
_SHARED = 0.5


@dataclass(frozen=True)
class Samples:
    """Scores of the baseline and of one arm, with failed seeds imputed."""

    base: ArmScores
    arm: ArmScores

    @property
    def shared(self) -> list[Hashable]:
        """Seeds of both arms, in the order of the arm."""
        return [seed for seed in self.arm if seed in self.base]

    @property
    def rest(self) -> tuple[list[float], list[float]]:
        """Scores on seeds that are not shared, of the baseline and of the arm."""
        base = [score for seed, score in self.base.items() if seed not in self.arm]
        arm = [score for seed, score in self.arm.items() if seed not in self.base]
        return base, arm


def layout_of(base: ArmScores, arm: ArmScores, pairing: Pairing = "auto") -> Layout:
    """Return the layout for comparing an arm with the baseline, given the seeds of both. A
    ``pairing`` other than ``auto`` is the layout itself.
    """
    if pairing != "auto":
        return pairing
    samples = Samples(base, arm)
    shared = len(samples.shared)
    smaller = min(len(base), len(arm))
    if shared < _SHARED * smaller or (shared == 1 and smaller > 1):
        return "unpaired"
    rest_of_base, rest_of_arm = samples.rest
    return "partly paired" if rest_of_base and rest_of_arm else "paired"


def tested(difference: Difference, error: float, dof: int, comparisons: int) -> Difference:
    """Add the Bonferroni interval and p values at `levels.level`, if the noise can be estimated.

    Args:
        difference: the difference without a test.
        error: its standard error.
        dof: degrees of freedom of the error.
        comparisons: number of comparisons to correct for.
    """
    if dof < 1 or not error > 0:
        return difference
    needed = float(special.stdtrit(dof, 1 - level(dof) / comparisons))
    corrected = comparisons * SIGNIFICANCE_LEVEL / level(dof)
    t = difference.gain / error
    interval = (difference.gain - needed * error, difference.gain + needed * error)
    return replace(
        difference,
        interval=interval,
        p=min(1.0, corrected * float(special.stdtr(dof, -t))),
        p_worse=min(1.0, corrected * float(special.stdtr(dof, t))),
        outcome=outcome_of(interval, difference.seeds),
    )
