"""Every update rule, once: what the invariants are tested on."""

import sys
from typing import Any

from tests.paths import ROOT
from tests.tables import table
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.advantages import ADVANTAGES as ADVANTAGE_RULES
from trainer.rules.losses import LOSSES as LOSS_RULES

sys.path.append(str(ROOT / "examples" / "rules"))  # rules that stand beside the package

ADVANTAGES = {name: {"advantage": name} for name in ADVANTAGE_RULES}
LOSSES = {name: {"loss": name} for name in LOSS_RULES}
RULES: dict[str, dict[str, Any]] = {**ADVANTAGES, **LOSSES, **table("algorithm_settings")}


def algorithm(rule: dict[str, Any], **more: Any) -> AlgorithmConfig:
    """A rule without KL penalty unless it has one of its own."""
    return AlgorithmConfig(**{"kl_coef": 0.0, **rule, **more})
