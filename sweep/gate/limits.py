"""The limits of a campaign: numbers of runs and proposals, hours, and a deadline."""

import datetime

from loptune.errors import ConfigError
from sweep.gate.spec import CampaignSpec
from sweep.gate.state import State
from sweep.gate.verdict import GateVerdict


def read_deadline(text: str) -> str:
    """Return a date and time in ISO 8601 format with a time zone (the local one if the text has
    none), as the campaign records it.

    Raises:
        ConfigError: the text is not a date.
    """
    try:
        moment = datetime.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is not a date",
            "--deadline",
            "write for example --deadline 2027-01-31T18:00",
            code="no-date",
        ) from None
    return moment.isoformat()


def spent(state: State, spec: CampaignSpec, now: float, *, further_runs: int = 0) -> str:
    """Return a description of the limit that is reached or that the next runs would exceed; an
    empty string if there is none.

    Args:
        state: state of the campaign.
        spec: settings of the campaign.
        now: seconds since 1970.
        further_runs: number of runs that would start next.
    """
    if spec.max_runs is not None and state.runs + max(further_runs, 1) > spec.max_runs:
        words = f"{state.runs} of --max-runs {spec.max_runs} runs are done"
        return f"{words}, and {further_runs} more are needed" if further_runs else words
    hours = (now - state.started.get("time", now)) / 3600
    if spec.max_hours is not None and hours >= spec.max_hours:
        return f"{hours:.1f} of --max-hours {spec.max_hours:g} hours have passed"
    if spec.deadline is None:
        return ""
    is_over = now >= datetime.datetime.fromisoformat(spec.deadline).timestamp()
    return f"--deadline {spec.deadline} has passed" if is_over else ""


def are_all_made(state: State, spec: CampaignSpec) -> bool:
    """Return whether a campaign has reached its maximum number of proposals."""
    return spec.max_proposals is not None and len(state.proposals) >= spec.max_proposals


def within_limits(
    verdict: GateVerdict, state: State, spec: CampaignSpec, now: float
) -> GateVerdict:
    """Return the verdict, or the end of the campaign if a limit does not allow the required runs or
    a further proposal. Decisions that need no further runs are still made after the end.

    Args:
        verdict: the verdict without limits.
        state: state of the campaign.
        spec: settings of the campaign.
        now: seconds since 1970.
    """
    if verdict.outcome not in ("more", "ready"):
        return verdict
    further = sum(len(need.seeds) for need in verdict.needs)
    reason = spent(state, spec, now, further_runs=further)
    if not reason and verdict.outcome == "ready" and are_all_made(state, spec):
        made = len(state.proposals)
        reason = f"all {made} proposals are decided, and --max-proposals is {spec.max_proposals}"
    if not reason:
        return verdict
    return GateVerdict(
        outcome="ended", proposal=verdict.proposal, reason=reason, answer=verdict.answer
    )
