"""A proposed change to the baseline."""

from dataclasses import dataclass, field
from typing import Any

from sweep.gate.arm import Arm


@dataclass
class Proposal(Arm):
    """A proposed change.

    If the baseline was replaced or its scores have drifted meanwhile, a proposal that has passed
    its test is compared again. ``baseline`` is then the index of the new baseline, and ``earlier``
    contains the runs of the first comparison.
    """

    number: int = 0  # counted from 1
    baseline: int = 0  # index of the baseline for the comparison
    asked: int = 1  # seeds at the next interim analysis
    # index of the repeated baseline that had to run before the proposal could be kept
    beside: int | None = None
    earlier: list[tuple[int, Arm]] = field(default_factory=list)  # (index of the baseline, runs)
    decision: dict[str, Any] | None = None  # event that decided the proposal
    decided_at: int = 0  # number of proposals when it was decided
    # protected files that the proposal changes; these changes have no effect
    protected: list[str] = field(default_factory=list)
    given_up: bool = False  # whether a re-check abandoned the proposal after it was kept

    @property
    def kept(self) -> bool:
        """Whether the proposal was kept and no later re-check discarded it."""
        if self.decision is None or self.given_up:
            return False
        return bool(self.decision["outcome"] == "keep")

    @property
    def runs(self) -> int:
        """Number of finished runs of the proposal, including earlier comparisons."""
        arms = [self, *(arm for _, arm in self.earlier)]
        return sum(len(arm.scores) + len(arm.failed) for arm in arms)

    @property
    def all_by_hand(self) -> list[int]:
        """Seeds whose results were recorded by hand, including earlier comparisons."""
        arms = [*(arm for _, arm in self.earlier), self]
        return [seed for arm in arms for seed in arm.by_hand]

    def compare_with(self, index: int, configuration: Arm) -> None:
        """Start the comparison with a different baseline, on the seeds of that baseline.

        Args:
            index: index of that baseline.
            configuration: the proposal's change, applied to that baseline.
        """
        before = Arm(self.settings, self.command, self.revision, self.note, self.files)
        before.scores, before.failed, before.by_hand = self.scores, self.failed, self.by_hand
        before.guards = self.guards
        self.earlier.append((self.baseline, before))
        self.settings = configuration.settings
        self.command = configuration.command
        self.revision = configuration.revision
        self.files = configuration.files
        self.scores = {}
        self.failed = {}
        self.guards = {}
        self.by_hand = []
        self.baseline = index
        self.beside = index
        self.asked = 1


def transferred(proposal: Proposal, base: Arm, current: Arm) -> Arm:
    """Return a proposal's change of ``base`` as a change of ``current``.

    Settings are merged. A command or revision that the proposal changed replaces the current one,
    because revisions are not merged.
    """
    settings = dict(current.settings)
    for key, value in proposal.settings.items():
        if key not in base.settings or base.settings[key] != value:
            settings[key] = value
    command = current.command if proposal.command == base.command else proposal.command
    revision = current.revision if proposal.revision == base.revision else proposal.revision
    files = {**current.files, **proposal.files}
    return Arm(settings, command, revision, proposal.note, files)
