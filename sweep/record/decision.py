"""The decision on finalists in rounds of fresh seeds, as the ledger of NAME-confirm records it."""

from dataclasses import dataclass
from typing import Any, Literal

from dashboards.statistics.seed_noise import Noise
from dashboards.statistics.sequential import Design, Standing
from sweep.record.sweep_record import SweepRecord
from sweep.search.history import LOOK, PLAN

Outcome = Literal["better", "not better", "undecided", "open"]


@dataclass(frozen=True)
class Decision:
    """A decision as its ledger has it. Finalists are named by their number in NAME-confirm."""

    design: Design
    known: Noise  # between seeds, from the sweep that is decided
    # after every look, the finalists that were open before it
    looks: tuple[tuple[Standing, ...], ...] = ()

    @property
    def retired(self) -> set[str]:
        """Finalists that need no further seeds."""
        return {
            standing.finalist
            for look in self.looks
            for standing in look
            if standing.decision != "open"
        }

    @property
    def outcome(self) -> Outcome:
        """better: a finalist is. not better: none is, by the worthwhile gain. undecided: no look is
        left.
        """
        if any(standing.decision == "better" for look in self.looks for standing in look):
            return "better"
        if len(self.retired) == self.design.finalists:
            return "not better"
        return "undecided" if len(self.looks) == len(self.design.looks) else "open"


def decision_of(sweep: SweepRecord) -> Decision | None:
    """Return the decision that a sweep's ledger records; None where the sweep is not run in
    rounds.
    """
    plan = None
    looks = []
    for record in sweep.events:
        if record.get("event") == PLAN:
            plan = record
        elif record.get("event") == LOOK:
            looks.append(tuple(Standing(**standing) for standing in record["standings"]))
    if plan is None:
        return None
    design: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in plan["design"].items()
    }
    noise = Noise(
        plan["deviation"] if plan["deviation"] is not None else float("nan"), plan["freedom"]
    )
    return Decision(Design(**design), noise, tuple(looks))
