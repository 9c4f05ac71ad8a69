"""Update rules: a rule is a file with its equation, its parameters and its source.

`losses` and `advantages` have the built-in ones; ``module:Class`` names one of the user's. Names
that a rule of one's own needs are exported here.
"""

from trainer.rules.advantage import Advantage, KlPlacement
from trainer.rules.groups import centered, group_means, group_std, mean_and_variance, whiten
from trainer.rules.inputs import AdvantageInputs, Gather, LossInputs, TokenLosses, UpdateTotals
from trainer.rules.policy_loss import Aggregation, PolicyLoss
from trainer.section import NonNegative, Positive, Probability
from trainer.types import TrainBatch

__all__ = [
    "Advantage",
    "AdvantageInputs",
    "Aggregation",
    "Gather",
    "KlPlacement",
    "LossInputs",
    "NonNegative",
    "PolicyLoss",
    "Positive",
    "Probability",
    "TokenLosses",
    "TrainBatch",
    "UpdateTotals",
    "centered",
    "group_means",
    "group_std",
    "mean_and_variance",
    "whiten",
]
