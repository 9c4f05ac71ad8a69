"""Names of update rules, for tags and legends."""


def rule_name(advantage: str, loss: str) -> str:
    """What an advantage estimator and a policy loss are called together: grpo, dr_grpo, gspo, rloo with cispo."""
    if loss == "clipped":
        return advantage
    return loss if advantage == "grpo" else f"{advantage} with {loss}"


def variant_name(
    algorithm: str,
    alpha: float,
    eta: float,
    token_filter: str = "none",
    lopti_split: str = "probability",
    lopti_order: str = "low_first",
) -> str:
    """The update rule in words: the algorithm, and which of AR, Lopti and the controls are on.

    The first argument is of `rule_name`, the others are those of ``algorithm.*``; eta is the threshold of Lopti
    or of the token filter.
    """
    parts = [algorithm]
    if alpha > 0:
        parts.append("AR")
    if eta > 0 and token_filter != "none":
        parts.append(token_filter.replace("_", " "))
    elif eta > 0:
        kinds = {"random": "random split", "probability": "Lopti"}
        parts.append(kinds[lopti_split] + (" high first" if lopti_order == "high_first" else ""))
    return " + ".join(parts)
