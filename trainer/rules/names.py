"""Names of rules, for whoever needs no rule."""

LOSS_KEY = "algorithm.loss"
ADVANTAGE_KEY = "algorithm.advantage"
DEFAULT_LOSS = "clipped"
DEFAULT_ADVANTAGE = "grpo"


def label_of(name: str) -> str:
    """Return the name of a rule without its module: ``my_rules:Cautious`` is Cautious."""
    return name.rpartition(":")[2]


def rule_name(advantage: str, loss: str) -> str:
    """Return the name of an advantage with a policy loss; defaults are left out: dr_grpo, gspo,
    rloo with cispo.
    """
    if loss == DEFAULT_LOSS:
        return label_of(advantage)
    if advantage == DEFAULT_ADVANTAGE:
        return label_of(loss)
    return f"{label_of(advantage)} with {label_of(loss)}"
