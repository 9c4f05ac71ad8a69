"""Display names of update rules and parameters, for tags, tables and legends."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from trainer.rules.names import ADVANTAGE_KEY, LOSS_KEY, rule_name

# keys that the update rule's display name reflects
RULE = (ADVANTAGE_KEY, LOSS_KEY, "algorithm.ar_alpha", "algorithm.lopti_eta")
# keys of the rule that are a strength, 0 for none -> their sign in a label
RULE_SIGNS = {"algorithm.ar_alpha": "α", "algorithm.lopti_eta": "η"}


def isolates(eta: float, token_filter: str) -> bool:
    """Return whether Lopti updates in two passes. The ``drop_*`` filters use its threshold but a
    single pass.
    """
    return eta > 0 and token_filter not in ("drop_high", "drop_low")


def rule_label(setting: Callable[[str], Any]) -> str:
    """Return the display name of an update rule: `rule_name` plus the active ones of AR, Lopti and
    the controls. ``setting`` returns the value of a dotted key.
    """
    keys = ("ar_alpha", "lopti_eta", "token_filter", "lopti_split", "lopti_order", "entropy_coef")
    alpha, eta, token_filter, lopti_split, lopti_order, entropy_coef = (
        setting(f"algorithm.{key}") for key in keys
    )
    parts = [rule_name(setting(ADVANTAGE_KEY), setting(LOSS_KEY))]
    if alpha > 0:
        parts.append("AR")
    if token_filter == "high_entropy" or (eta > 0 and token_filter != "none"):
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


def short_name(parameter: str) -> str:
    """Return the last part of a dotted key, or its section if the last part is just ``name``."""
    *_, section, last = ["", *parameter.split(".")]
    return section if last == "name" and section else last


def short_names(parameters: Sequence[str]) -> dict[str, str]:
    """Map each parameter to its short name, or to its full name if short names collide."""
    count = Counter(map(short_name, parameters))
    return {name: name if count[short_name(name)] > 1 else short_name(name) for name in parameters}


def shown(value: Any) -> str:
    """Format a parameter value for display."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
