"""Advantage estimators by name."""

from trainer.rules.advantages.group_mean import DrGrpo, Grpo, Rloo
from trainer.rules.advantages.optimal_token_baseline import OptimalTokenBaseline
from trainer.rules.advantages.reinforce import ReinforcePlusPlus
from trainer.rules.interface import Advantage

ADVANTAGES: dict[str, type[Advantage]] = {
    "grpo": Grpo,
    "dr_grpo": DrGrpo,
    "rloo": Rloo,
    "optimal_token_baseline": OptimalTokenBaseline,
    "reinforce_plus_plus": ReinforcePlusPlus,
}
