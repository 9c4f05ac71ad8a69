"""Advantage estimators by name."""

from trainer.rules.advantages.group_mean import DrGrpo, Grpo, Rloo
from trainer.rules.advantages.reinforce import ReinforcePlusPlus
from trainer.rules.interface import Advantage

ADVANTAGES: dict[str, type[Advantage]] = {
    "grpo": Grpo,
    "dr_grpo": DrGrpo,
    "rloo": Rloo,
    "reinforce_plus_plus": ReinforcePlusPlus,
}
