"""The state of a campaign with the keys of ``--json``."""

from dataclasses import dataclass
from typing import Any

from dashboards.statistics.moved import Move
from dashboards.trial import sign_of
from loptune.score import mean
from sweep.gate.campaign import Campaign
from sweep.gate.proposal import Proposal
from sweep.gate.verdict import GateVerdict, Need, numbers


def campaign_fields(campaign: Campaign, verdict: GateVerdict) -> dict[str, Any]:
    """Return the state of a campaign as ``--json`` prints it."""
    model = campaign.model()
    noise: dict[str, Any] = {"sd": None, "correlation": None}
    if model is not None:
        noise = {"sd": model.sd, "correlation": model.correlation}
    kept_from = campaign.kept[-1] if campaign.kept else None
    return {
        "campaign": str(campaign.folder),
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "proposal": verdict.proposal,
        **{"guards": [], **numbers(verdict.answer)},
        "needs": [_need_fields(need) for need in verdict.needs],
        "baseline": {
            "settings": campaign.baseline.settings,
            "command": campaign.baseline.command,
            "revision": campaign.baseline.revision,
            "mean": mean_of(campaign.baseline.scores),
            "guards": {
                metric: mean_of(values) for metric, values in campaign.baseline.guards.items()
            },
            "seeds": sorted(campaign.baseline.scores),
            "kept_from": kept_from,
        },
        "metric": campaign.spec.metric,
        "larger_is_better": sign_of(campaign.spec.mode) > 0,
        **noise,
        "proposals": len(campaign.proposals),
        "earlier": [
            {key: fields[key] for key in ("folder", "proposals", "kept")}
            for fields in campaign.started.get("earlier", [])
        ],
        "open": [proposal.number for proposal in campaign.open_proposals],
        "runs": campaign.runs,
        "by_hand": [{"what": name, "seeds": seeds} for name, seeds in campaign.by_hand],
        "moves": [each.fields() for each in moves(campaign)],
        "history": [history(campaign, each) for each in campaign.proposals],
        "kept": campaign.kept,
        "recheck_due": campaign.recheck_due,
        "false_keeps": campaign.spec.false_keeps,
    }


def _need_fields(need: Need) -> dict[str, Any]:
    """Return required runs with the keys of ``--json``; ``proposal`` is there only if a proposal
    runs.
    """
    numbered = {} if need.proposal is None else {"proposal": need.proposal}
    return {"arm": need.arm, "seeds": list(need.seeds), **numbered}


@dataclass(frozen=True, kw_only=True)
class MetricMove:
    """The change of a metric between two measurements of a baseline."""

    metric: str
    baseline: int  # index of the later measurement
    move: Move

    def fields(self) -> dict[str, Any]:
        """Return the change with the keys of ``--json``."""
        return {
            "metric": self.metric,
            "baseline": self.baseline,
            "change": self.move.change,
            "low": self.move.low,
            "high": self.move.high,
            "p": self.move.p,
            "moved": self.move.has_moved,
        }


def moves(campaign: Campaign) -> list[MetricMove]:
    """Return the changes of the score and every guard of each baseline that was measured again."""
    changes = []
    for index, move in campaign.moves():
        changes.append(MetricMove(metric=campaign.spec.metric, baseline=index, move=move))
    for guard in campaign.spec.guard_specs():
        for index, move in campaign.moves(guard.metric):
            changes.append(MetricMove(metric=guard.metric, baseline=index, move=move))
    return changes


def history(campaign: Campaign, proposal: Proposal) -> dict[str, Any]:
    """Return the change and the outcome of a proposal."""
    decision = proposal.decision or {}
    return {
        "proposal": proposal.number,
        "change": _changed(campaign, proposal),
        "settings": proposal.settings,
        "command": proposal.command,
        "revision": proposal.revision,
        "note": proposal.note,
        "outcome": _outcome(proposal),
        "protected": proposal.protected,
        "reason": decision.get("reason", ""),
        "gain": decision.get("gain"),
        "guards": decision.get("guards", []),
        "seeds": proposal.runs,
        "by_hand": proposal.all_by_hand,
    }


def _outcome(proposal: Proposal) -> str:
    if proposal.given_up:
        return "abandoned"
    return str((proposal.decision or {}).get("outcome", "open"))


def _changed(campaign: Campaign, proposal: Proposal) -> str:
    """Return how a proposal differs from its baseline."""
    base = campaign.baselines[proposal.baseline]
    changed = []
    for key, value in proposal.settings.items():
        if base.settings.get(key) != value:
            changed.append(f"{key}={value}")
    if proposal.command != base.command:
        changed.append(" ".join(proposal.command or []))
    if proposal.revision != base.revision:
        changed.append(f"revision {(proposal.revision or '')[:9]}")
    if proposal.note:
        changed.append(proposal.note)
    return "; ".join(changed)


def mean_of(scores: dict[int, float]) -> float | None:
    """Return the mean of an arm's scores or of its values of a guard; None if there are none."""
    return mean(list(scores.values())) if scores else None
