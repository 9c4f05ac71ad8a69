"""The state of a campaign, computed from its events.

Baselines are numbered from 0, and each has its own seeds (`sweep.gate.seeds`). A new baseline is
added when a proposal is kept, when a re-check returns to an earlier baseline, and when the same
configuration is measured again because its runs are old.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dashboards.statistics.moved import Move, moved
from loptune.files import Record
from sweep.gate.arm import BASELINE, FIRST, PROPOSAL, Arm
from sweep.gate.proposal import Proposal
from sweep.gate.recheck import DUE_AFTER, Recheck
from sweep.gate.seeds import Seeds

# Number of proposals without a keep after which the baseline runs again. With a drift of 0.01 SD
# per proposal, baseline runs that are 100 proposals old would make more than half of the campaigns
# keep a change without effect.
AGAIN_AFTER = 10


class UnknownEventError(Exception):
    """An event that does not fit this version, or the events before it."""

    number = 0  # position of the event in the campaign, counted from 1


class State:
    """Baselines, proposals and re-checks of a campaign."""

    def __init__(self) -> None:
        self.baselines: list[Arm] = []
        self.proposals: list[Proposal] = []
        self.rechecks: list[Recheck] = []
        # (index of a baseline, index of its repetition)
        self.repetitions: list[tuple[int, int]] = []
        self.started: Record = {}  # the first event
        self.seeds = Seeds()
        self._confirmed = 0  # index of the last baseline that was confirmed

    @property
    def baseline(self) -> Arm:
        """The current baseline."""
        return self.baselines[-1]

    @property
    def open_proposals(self) -> list[Proposal]:
        """The proposals that are neither kept nor discarded."""
        return [proposal for proposal in self.proposals if proposal.decision is None]

    @property
    def open(self) -> Proposal | None:
        """The latest open proposal, or None."""
        undecided = self.open_proposals
        return undecided[-1] if undecided else None

    @property
    def kept(self) -> list[int]:
        """The numbers of the kept proposals, except the ones that a re-check discarded."""
        return [proposal.number for proposal in self.proposals if proposal.kept]

    @property
    def unconfirmed(self) -> list[int]:
        """The numbers of the proposals that were kept since the last decided re-check."""
        later = [each for each in self.proposals if each.baseline >= self._confirmed]
        return [proposal.number for proposal in later if proposal.kept]

    @property
    def recheck_due(self) -> bool:
        """Whether no re-check is open, and enough proposals were kept since the last one."""
        return self.open_recheck is None and len(self.unconfirmed) >= DUE_AFTER

    @property
    def open_recheck(self) -> Recheck | None:
        """The undecided re-check, or None."""
        if self.rechecks and self.rechecks[-1].decision is None:
            return self.rechecks[-1]
        return None

    @property
    def runs(self) -> int:
        """The number of finished runs."""
        arms: list[Arm] = list(self.baselines)
        for recheck in self.rechecks:
            arms += [recheck.first, recheck.latest]
        ended = sum(len(arm.scores) + len(arm.failed) for arm in arms)
        return ended + sum(proposal.runs for proposal in self.proposals)

    @property
    def baseline_is_old(self) -> bool:
        """Whether the baseline must run again, because many proposals were discarded since it
        ran.
        """
        current = len(self.baselines) - 1
        discarded = 0
        for proposal in self.proposals:
            decided = proposal.decision is not None and not proposal.kept
            discarded += decided and proposal.baseline == current
        return discarded >= AGAIN_AFTER

    @property
    def by_hand(self) -> list[tuple[str, list[int]]]:
        """Names of configurations and the seeds whose results were recorded by hand, although the
        campaign runs a program.
        """
        marked = [("baseline", arm.by_hand) for arm in self.baselines]
        for proposal in self.proposals:
            marked.append((f"proposal {proposal.number}", proposal.all_by_hand))
        for recheck in self.rechecks:
            marked.append(("re-check", [*recheck.first.by_hand, *recheck.latest.by_hand]))
        return [(name, seeds) for name, seeds in marked if seeds]

    def moves(self, metric: str | None = None) -> list[tuple[int, Move]]:
        """Return (index, change of the scores in units of the score) for each baseline that was
        measured again, or the change of a guard's values if ``metric`` is a guard. A baseline is
        left out if either measurement has fewer than two scores.
        """
        changes = []
        for before, after in self.repetitions:
            earlier = list(self.baselines[before].values(metric).values())
            later = list(self.baselines[after].values(metric).values())
            if min(len(earlier), len(later)) >= 2:
                changes.append((after, moved(earlier, later)))
        return changes

    def baseline_of(self, seed: int) -> Arm:
        """Return the baseline that runs on a seed; for any other seed the current baseline."""
        index = self.seeds.baseline(seed)
        return self.baselines[index] if 0 <= index < len(self.baselines) else self.baseline

    def target(self, arm: str, seed: int, number: int | None = None) -> Arm | None:
        """Return the configuration for which a run of an arm on a seed is recorded, or None.

        Args:
            arm: name of the arm.
            seed: seed of the run.
            number: number of the proposal, for `PROPOSAL`; None: the latest open proposal.
        """
        if self.open_recheck is not None:
            checked: dict[str, Arm] = {
                BASELINE: self.open_recheck.latest,
                FIRST: self.open_recheck.first,
            }
            return checked.get(arm)
        if arm == BASELINE:
            return self.baseline_of(seed)
        if arm != PROPOSAL:
            return None
        if number is None:
            return self.open
        return self._numbered(number)

    def apply(self, event: Record) -> None:
        """Update the state with an event.

        Raises:
            UnknownEventError: the event is unknown, lacks a field, or does not fit the events
                before it.
        """
        name = event.get("event")
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise UnknownEventError(f"the event {name} is unknown")
        _check_fields(event, kind.fields)
        if not self.baselines and name != "baseline":
            raise UnknownEventError(f"the event {name} precedes the first baseline")
        kind.apply(self, event)

    def _numbered(self, number: object) -> Proposal:
        """Return the proposal with a number that an event names."""
        if not isinstance(number, int) or not 1 <= number <= len(self.proposals):
            raise UnknownEventError(f"proposal {number!r} does not exist")
        return self.proposals[number - 1]

    def _rechecking(self) -> Recheck:
        """Return the open re-check, which an event concerns."""
        if self.open_recheck is None:
            raise UnknownEventError("no re-check is open")
        return self.open_recheck

    def _apply_start(self, event: Record) -> None:
        self.started = event
        self.seeds = Seeds(event.get("secret"))
        self.baselines.append(_configuration(event))

    def _apply_proposal(self, event: Record) -> None:
        arm = _configuration(event)
        if event["number"] != len(self.proposals) + 1:
            raise UnknownEventError(
                f"proposal {event['number']} follows {len(self.proposals)} proposals"
            )
        self.proposals.append(
            Proposal(
                settings=arm.settings,
                command=arm.command,
                revision=arm.revision,
                note=event["note"],
                files=arm.files,
                number=event["number"],
                baseline=len(self.baselines) - 1,
                protected=event.get("protected", []),
            )
        )

    def _apply_result(self, event: Record) -> None:
        seed = event["seed"]
        arm = self._arm_of(event, seed)
        arm.add(seed, event["score"], event["reason"], event.get("guards", {}))
        runs_a_program = self.started.get("campaign", {}).get("space")
        if runs_a_program:
            arm.by_hand.append(seed)

    def _apply_batch(self, event: Record) -> None:
        for part in event["parts"]:
            _check_fields(part, _RESULTS)
            self._apply_results(part)

    def _apply_results(self, event: Record) -> None:
        guards: dict[int, dict[str, float]] = {}  # seed -> metric -> value
        for metric, values in event.get("guards", {}).items():
            for seed, value in values:
                guards.setdefault(seed, {})[metric] = value
        for seed, score, reason in event["results"]:
            self._arm_of(event, seed).add(seed, score, reason, guards.get(seed, {}))

    def _arm_of(self, event: Record, seed: int) -> Arm:
        """Return the configuration whose run an event records."""
        arm = self.target(event["arm"], seed, event.get("number"))
        if arm is None:
            raise UnknownEventError(f"no {event['arm']} runs at this point")
        return arm

    def _apply_asked(self, event: Record) -> None:
        number = event.get("number")
        if number is None:
            self._rechecking().asked = event["seeds"]
        else:
            self._numbered(number).asked = event["seeds"]

    def _apply_again(self, event: Record) -> None:
        before = len(self.baselines) - 1
        self.baselines.append(self.baseline.again())
        self.repetitions.append((before, before + 1))
        if event.get("number") is not None:
            self._numbered(event["number"]).beside = before + 1

    def _apply_compared(self, event: Record) -> None:
        proposal = self._numbered(event["number"])
        index = event["baseline"]
        if not 0 <= index < len(self.baselines):
            raise UnknownEventError(f"baseline {index} does not exist")
        proposal.compare_with(index, _configuration(event))

    def _apply_decision(self, event: Record) -> None:
        proposal = self._numbered(event["number"])
        proposal.decision = event
        proposal.decided_at = len(self.proposals)
        if event["outcome"] == "keep":
            self.baselines.append(proposal.again())

    def _apply_recheck(self, event: Record) -> None:
        index = len(self.baselines) - 1
        first, latest = self.baselines[0].again(), self.baseline.again()
        self.rechecks.append(
            Recheck(first, latest, index, first_number=event["first_seed"], seeds=self.seeds)
        )

    def _apply_rechecked(self, event: Record) -> None:
        """Mark a chain as confirmed, or return to the last confirmed baseline."""
        recheck = self._rechecking()
        if event["outcome"] == "confirmed":
            recheck.decision = event
            self._confirmed = recheck.baseline
            return
        for number in self.unconfirmed:
            self.proposals[number - 1].given_up = True
        recheck.decision = event
        self.baselines.append(self.baselines[self._confirmed].again())
        self._confirmed = len(self.baselines) - 1


@dataclass(frozen=True)
class _Kind:
    """A kind of event."""

    apply: Callable[[State, Record], None]
    fields: frozenset[str] = frozenset()  # required fields


_CONFIGURATION = frozenset({"settings", "command", "revision"})
_RESULTS = frozenset({"arm", "results"})
_DECISION = frozenset({"outcome", "reason"})

_KINDS: dict[str, _Kind] = {
    "baseline": _Kind(State._apply_start, _CONFIGURATION),
    "proposal": _Kind(State._apply_proposal, _CONFIGURATION | {"number", "note"}),
    "result": _Kind(State._apply_result, frozenset({"arm", "seed", "score", "reason"})),
    "results": _Kind(State._apply_results, _RESULTS),
    "batch": _Kind(State._apply_batch, frozenset({"parts"})),
    "asked": _Kind(State._apply_asked, frozenset({"seeds"})),
    "again": _Kind(State._apply_again),
    "compared": _Kind(State._apply_compared, _CONFIGURATION | {"number", "baseline"}),
    "decision": _Kind(State._apply_decision, _DECISION | {"number"}),
    "recheck": _Kind(State._apply_recheck, frozenset({"first_seed"})),
    "rechecked": _Kind(State._apply_rechecked, _DECISION),
}


def _check_fields(event: Record, fields: frozenset[str]) -> None:
    """Check that an event, or a part of one, has the required fields."""
    if not fields <= event.keys():
        missing = ", ".join(sorted(fields - event.keys()))
        raise UnknownEventError(f"the event has no {missing}")


def _configuration(event: Record) -> Arm:
    """Return the configuration described by an event."""
    files: dict[str, Any] = event.get("files", {})
    return Arm(event["settings"], event["command"], event["revision"], files=files)
