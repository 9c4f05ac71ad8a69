"""Display names of update rules, for tags, tables and legends."""

from collections.abc import Callable
from typing import Any

from trainer.rules.names import ADVANTAGE_KEY, LOSS_KEY, rule_name


def isolates(eta: float, token_filter: str) -> bool:
    """Return whether Lopti updates in two passes. With a filter by probability (``drop_*``,
    ``interval``) there is a single pass. The ``drop_*`` filters use eta as their threshold.
    """
    return eta > 0 and token_filter not in ("drop_high", "drop_low", "interval")


def rule_label(setting: Callable[[str], Any]) -> str:
    """Return the display name of an update rule: `rule_name`, plus AR, Lopti and the controls that
    are active. ``setting`` returns the value of a dotted key.
    """
    keys = ("ar_alpha", "lopti_eta", "token_filter", "lopti_split", "lopti_order", "entropy_coef")
    alpha, eta, token_filter, lopti_split, lopti_order, entropy_coef = (
        setting(f"algorithm.{key}") for key in keys
    )
    parts = [rule_name(setting(ADVANTAGE_KEY), setting(LOSS_KEY))]
    if alpha > 0:
        parts.append("AR")
    if token_filter in ("high_entropy", "interval") or (eta > 0 and token_filter != "none"):
        parts.append(token_filter.replace("_", " "))
    if isolates(eta, token_filter):
        kinds = {"random": "random split", "probability": "Lopti"}
        part = kinds[lopti_split]
        if lopti_order == "high_first":
            part += " high first"
        parts.append(part)
    if float(entropy_coef) > 0:
        parts.append("entropy bonus")
    return " + ".join(parts)
