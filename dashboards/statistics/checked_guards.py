"""Guards: metrics on which a configuration must not be worse than the baseline.

A configuration is shown to be better only if its score is better and every guard holds. Each test
uses the full level, without a correction for their number: all of them must pass, so the
probability of a false claim is at most the level of one test (intersection-union test; Berger,
Technometrics 24, 1982).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dashboards.statistics.difference import Difference, Outcome, guard_outcome

GuardState = Literal["holds", "fails", "undecided"]


@dataclass(frozen=True)
class CheckedGuard:
    """The result of one guard for one configuration."""

    metric: str
    margin: float
    sign: int  # -1 if smaller is better
    outcome: GuardState
    found: Difference | None  # None if there is no score to compare

    @classmethod
    def of(cls, metric: str, margin: float, sign: int, found: Difference | None) -> "CheckedGuard":
        """Check a guard by the difference in its metric, signed so that larger is better."""
        return cls(metric, margin, sign, guard_outcome(found, margin), found)

    def fields(self) -> dict[str, Any]:
        """Return the result with the keys of ``--json``, in units of the metric. An infinite bound
        is None, and so are difference and interval if there are none.
        """
        interval = None
        if self.found is not None:
            interval = self.found.measured_interval(self.sign)
        return {
            "metric": self.metric,
            "margin": self.margin,
            "larger_is_better": self.sign > 0,
            "outcome": self.outcome,
            "difference": None if self.found is None else self.found.measured(self.sign),
            "interval": interval and [_finite(bound) for bound in interval],
        }


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def decided_with_guards(outcome: Outcome, guards: GuardState) -> Outcome:
    """Return the decision of an interim analysis on a finalist, given its score's decision and the
    state of its guards: the finalist is better only if all guards hold at the same analysis.
    """
    if guards == "fails":
        return "fails a guard"
    if outcome == "better" and guards == "undecided":
        return "undecided"
    return outcome


def state_of(checked: Sequence[CheckedGuard]) -> GuardState:
    """Return ``fails`` if any guard fails, ``undecided`` if any is undecided, else ``holds``."""
    outcomes = {guard.outcome for guard in checked}
    if "fails" in outcomes:
        return "fails"
    return "undecided" if "undecided" in outcomes else "holds"
