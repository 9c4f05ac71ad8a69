"""Guards: metrics on which a configuration must not be worse than the baseline.

A configuration is shown to be better only if its score is better and every guard holds. Each of
these tests has its own level, and no correction for their number is needed: all of them must hold,
so the chance that all do by mistake is at most one test's level (intersection-union test; Berger,
Technometrics 24, 1982).
"""

from dataclasses import dataclass
from typing import Literal

from dashboards.statistics.difference import Difference

GuardState = Literal["holds", "fails", "undecided"]


@dataclass(frozen=True)
class CheckedGuard:
    """What the seeds show of one guard and one configuration."""

    metric: str
    margin: float
    sign: int  # -1 if smaller is better
    outcome: GuardState
    found: Difference | None  # None if it has no score to compare


def state_of(checked: list[CheckedGuard]) -> GuardState:
    """Return ``fails`` if a guard fails, else ``undecided`` if one is, else ``holds``."""
    outcomes = {guard.outcome for guard in checked}
    if "fails" in outcomes:
        return "fails"
    return "undecided" if "undecided" in outcomes else "holds"
