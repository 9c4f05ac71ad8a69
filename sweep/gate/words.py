"""The verdict of a campaign in words."""

import math
from collections.abc import Callable, Sequence

from dashboards.statistics.checked_guards import CheckedGuard
from loptune.terminal.table import counted
from sweep.gate.campaign import Campaign
from sweep.gate.fields import mean_of
from sweep.gate.verdict import GateVerdict


def sentences(campaign: Campaign, verdict: GateVerdict) -> list[str]:
    """Return the outcome, the next command, guards, and what was recorded by hand."""
    lines = _outcome(campaign, verdict)
    lines += _protected_lines(campaign, verdict.proposal)
    if verdict.answer is not None:
        lines += [_guard_sentence(guard) for guard in verdict.answer.guards]
    if campaign.by_hand:
        listed = "; ".join(f"{name}: {_listed(seeds)}" for name, seeds in campaign.by_hand)
        lines.append(f"Recorded by hand, not by the campaign's own runs: {listed}.")
    return lines


def _outcome(campaign: Campaign, verdict: GateVerdict) -> list[str]:
    """Return what was decided, or which runs or commands are needed next."""
    return _OUTCOMES[verdict.outcome](campaign, verdict)


def _keep(campaign: Campaign, verdict: GateVerdict) -> list[str]:
    return [
        f"Keep proposal {verdict.proposal}: {verdict.reason}.{_measured(verdict)}",
        "It is the baseline now, and is measured again on fresh seeds.",
    ]


def _discard(campaign: Campaign, verdict: GateVerdict) -> list[str]:
    return [f"Discard proposal {verdict.proposal}: {verdict.reason}.{_measured(verdict)}"]


def _confirmed(campaign: Campaign, verdict: GateVerdict) -> list[str]:
    return [f"Confirmed: {verdict.reason}.{_measured(verdict)}"]


def _unconfirmed(campaign: Campaign, verdict: GateVerdict) -> list[str]:
    return [
        f"Not confirmed: {verdict.reason}.{_measured(verdict)}",
        "The changes kept since the last confirmed baseline are discarded. That "
        "baseline is restored and measured on fresh seeds.",
    ]


def _ended(campaign: Campaign, verdict: GateVerdict) -> list[str]:
    lines = [
        f"Ended: {verdict.reason}. {len(campaign.kept)} of {len(campaign.proposals)} "
        f"proposals kept.{_measured(verdict)}"
    ]
    undecided = [proposal.number for proposal in campaign.open_proposals]
    if undecided:
        lines.append(f"Undecided: {', '.join(map(str, undecided))}.")
    return lines


def _ready(campaign: Campaign, verdict: GateVerdict) -> list[str]:
    """Return the baseline's score, and the command that proposes a change."""
    lines = [
        f"Ready. The baseline scores {mean_of(campaign.baseline.scores):.4g} on "
        f"{len(campaign.baseline.scores)} seeds; {len(campaign.kept)} of "
        f"{len(campaign.proposals)} proposals kept."
    ]
    if campaign.recheck_due:
        lines.append(
            f"{len(campaign.unconfirmed)} changes were kept since the chain was last checked "
            f"against the first baseline: {campaign.command('recheck')}"
        )
    change = '--note "what is changed"' if campaign.spec.space is None else "KEY=VALUE --run"
    return [*lines, f"next: {campaign.command('propose')} {change}"]


def _more(campaign: Campaign, verdict: GateVerdict) -> list[str]:
    """Return the required runs, and the command that starts or records them."""
    if verdict.proposal is not None:
        subject = f"Proposal {verdict.proposal}"
    elif campaign.open_recheck is not None:
        subject = "The re-check"
    elif len(campaign.open_proposals) > 1:
        subject = "The campaign"
    else:
        subject = "The baseline"
    lines = [f"{subject} needs more runs: {verdict.reason}.{_measured(verdict)}"]
    for need in verdict.needs:
        name = need.arm if need.proposal is None else f"{need.arm} {need.proposal}"
        lines.append(f"  {name}: seeds {', '.join(map(str, need.seeds))}")
    if campaign.spec.space is not None:
        return [*lines, f"next: {campaign.command('run')}"]
    first = verdict.needs[0]
    words = [first.arm, str(first.seeds[0]), "SCORE"]
    if len(campaign.open_proposals) > 1 and first.proposal is not None:
        words += ["--proposal", str(first.proposal)]
    for guard in campaign.spec.guard_specs():
        words += ["--guard", f"{guard.metric}=VALUE"]
    return [*lines, f"next: {campaign.command('record', *words)}"]


_OUTCOMES: dict[str, Callable[[Campaign, GateVerdict], list[str]]] = {
    "ready": _ready,
    "more": _more,
    "keep": _keep,
    "discard": _discard,
    "confirmed": _confirmed,
    "unconfirmed": _unconfirmed,
    "ended": _ended,
}


def _measured(verdict: GateVerdict) -> str:
    """Return the measured gain and its interval; empty without an interval."""
    difference = None if verdict.answer is None else verdict.answer.difference
    if difference is None or difference.interval is None:
        return ""
    low, high = difference.interval
    interval = f"{low:+.4g} to {high:+.4g}" if math.isfinite(low) else f"below {high:+.4g}"
    return f" Gain {difference.gain:+.4g} ({interval}) on {counted(difference.seeds, 'seed')}."


def _listed(seeds: Sequence[int]) -> str:
    words = "seed" if len(seeds) == 1 else "seeds"
    return f"{words} {', '.join(map(str, seeds))}"


def _guard_sentence(guard: CheckedGuard) -> str:
    """Return the result of a guard in words, in units of its metric."""
    verb = {"holds": "holds", "fails": "fails", "undecided": "is undecided"}[guard.outcome]
    better = "larger" if guard.sign > 0 else "smaller"
    fields = guard.fields()
    low, high = fields["interval"]
    if low is None:
        interval = f"at most {high:+.4g}"
    elif high is None:
        interval = f"at least {low:+.4g}"
    else:
        interval = f"{low:+.4g} to {high:+.4g}"
    return (
        f"Guard {guard.metric} {verb}: {fields['difference']:+.4g} ({interval}; margin "
        f"{guard.margin:g}, {better} is better)."
    )


def _protected_lines(campaign: Campaign, decided: int | None) -> list[str]:
    """Return a line for each proposal, open or just decided, that changes protected files: these
    changes have no effect.
    """
    lines = []
    for proposal in campaign.proposals:
        is_shown = proposal.decision is None or proposal.number == decided
        if proposal.protected and is_shown:
            lines.append(
                f"Proposal {proposal.number} changes protected files, and runs with the "
                f"baseline's versions: {', '.join(proposal.protected)}"
            )
    return lines
