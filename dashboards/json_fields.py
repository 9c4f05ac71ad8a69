"""The numbers behind a verdict: the fields of ``--json``."""

from typing import Any

from dashboards.cost_ratios import cost_ratios
from dashboards.next_step import next_step
from dashboards.results import Results
from dashboards.statistics.arm_table import ArmRow
from dashboards.statistics.tournament import RuleResult
from dashboards.statistics.verdict import Tested, Undecided, Verdict

_OF_ALL = ("difference", "seeds", "comparisons", "improves", "layout", "runs", "sign")
_OF_TESTED = (
    "claim", "interval", "coverage", "p_value", "median", "sd", "dof", "by_problem", "shrunken",
    "largest_gain", "detectable", "confirmation_seeds",
)  # fmt: skip
_OF_ARM = (
    "configuration", "name", "runs", "failed", "missing", "mean", "sd", "difference", "interval",
    "coverage", "p_value", "layout", "outcome",
)  # fmt: skip


def verdict_fields(results: Results, judged: Verdict) -> dict[str, Any]:
    """Return the ``--json`` fields of a verdict."""
    labels = results.labels
    fields: dict[str, Any] = {"kind": type(judged).__name__.lower()}
    fields["configuration"] = judged.best
    fields["best"] = labels[judged.best]
    fields["baseline"] = labels[judged.baseline]
    fields |= {key: getattr(judged, key) for key in _OF_ALL}
    fields["failed"] = {labels[number]: count for number, count in judged.failed.items()}
    fields["deciding_seeds"] = judged.deciding_seeds
    fresh = results.fresh
    known = results.blocks() if fresh is None else fresh.blocks(results.seed_scores)
    fields["blocks"] = vars(known)
    if isinstance(judged, Tested):
        fields |= {key: getattr(judged, key) for key in _OF_TESTED}
    elif isinstance(judged, Undecided):
        fields["why"] = judged.why
    return fields


def arm_fields(arm: ArmRow) -> dict[str, Any]:
    """Return the ``--json`` fields of an arm."""
    return {key: getattr(arm, key) for key in _OF_ARM}


def cost_fields(results: Results) -> dict[str, dict[str, float]]:
    """Return configuration label -> cost column -> mean amount relative to the baseline's mean
    amount, only for unequal amounts.
    """
    judged = results if results.fresh is None else results.fresh
    return {judged.labels[number]: row for number, row in cost_ratios(judged).items()}


def guard_fields(results: Results, configuration: str) -> list[dict[str, Any]]:
    """Return the ``--json`` fields of the guards of a configuration."""
    return [checked.fields() for checked in results.checked_guards(configuration)]


def rule_fields(results: Results, result: RuleResult) -> dict[str, Any]:
    """Return the ``--json`` fields of a separately tuned rule, with the fields of its guards."""
    found = result.found
    return {
        "rule": result.rule,
        "difference": result.difference,
        "interval": result.interval,
        "p_value": found.p,
        "p_worse": found.p_worse,
        "refusal": result.refusal,
        "coverage": found.coverage,
        "guards": guard_fields(results, results.tuned_rules.setting_of(result.rule)),
    }


def next_fields(results: Results) -> dict[str, str] | None:
    """Return the recommended next step; None if nothing is recommended."""
    step = next_step(results)
    return None if step is None else {"text": step.text, "command": step.command}
