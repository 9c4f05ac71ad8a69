"""Rule names and configuration keys, importable without the rules."""

LOSS_KEY = "algorithm.loss"
ADVANTAGE_KEY = "algorithm.advantage"
DEFAULT_LOSS = "clipped"
DEFAULT_ADVANTAGE = "grpo"


def label_of(name: str) -> str:
    """Return a rule's name without its module: ``Cautious`` for ``my_rules:Cautious``."""
    return name.rpartition(":")[2]


def rule_name(advantage: str, loss: str) -> str:
    """Return a display name for an advantage and a loss, omitting defaults: ``dr_grpo``, ``gspo``,
    ``rloo with cispo``.
    """
    if loss == DEFAULT_LOSS:
        return label_of(advantage)
    if advantage == DEFAULT_ADVANTAGE:
        return label_of(loss)
    return f"{label_of(advantage)} with {label_of(loss)}"
