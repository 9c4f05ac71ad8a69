"""Update rules. Each rule is a file with its equation, parameters and reference.

`losses` and `advantages` contain the built-in rules; ``module:Class`` refers to a user-defined one.
This module exports the names that user-defined rules need.
"""

from loptune.section import NonNegative, Positive, Probability
from trainer.rules.groups import (
    FLOAT32_RESOLUTION,
    centered,
    group_means,
    group_std,
    mean_and_variance,
    whiten,
)
from trainer.rules.interface import (
    Advantage,
    AdvantageInputs,
    Aggregation,
    Gather,
    KlPlacement,
    LossInputs,
    PolicyLoss,
    RuleState,
    StepSummary,
    TokenLosses,
    UpdateTotals,
    without_rounding,
)
from trainer.types import TrainBatch

__all__ = [
    "FLOAT32_RESOLUTION",
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
    "RuleState",
    "StepSummary",
    "TokenLosses",
    "TrainBatch",
    "UpdateTotals",
    "centered",
    "group_means",
    "group_std",
    "mean_and_variance",
    "whiten",
    "without_rounding",
]
