"""Evaluation of the policy while it trains."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from trainer.config.data import DatasetConfig, as_dataset
from trainer.section import Completions, Count, Fraction, NonNegative, Section

_SET_NAME = re.compile(r"\w[\w.-]*")
PER_SET = ("temperature", "completions_per_problem")  # what a set may do otherwise


class EvaluationSetConfig(DatasetConfig):
    """A dataset to evaluate on, and what is done otherwise than for the other sets."""

    temperature: NonNegative | None = None
    """sampling temperature on this set; evaluation.temperature if null"""
    completions_per_problem: Completions | None = None
    """completions per problem of this set; evaluation.completions_per_problem if null"""


EvaluationSet = Annotated[
    EvaluationSetConfig, BeforeValidator(as_dataset, str | EvaluationSetConfig)
]


class EvaluationConfig(Section):
    """Measuring the policy while it trains."""

    every_steps: Count = 20
    """training steps between evaluations"""
    at_start: bool = True
    """evaluate before the first step"""
    sets: dict[str, EvaluationSet] = Field({"dev": EvaluationSetConfig(split="dev", size=100)})
    """name -> dataset; the first is `eval/accuracy`"""
    temperature: NonNegative = 0.0
    """0 is greedy"""
    top_p: Fraction = 1.0
    """probability mass of nucleus sampling"""
    completions_per_problem: Completions = 1
    """completions per problem; accuracy is their mean, and pass@k is of all of them"""

    @field_validator("sets")
    @classmethod
    def _check_sets(cls, sets: dict[str, EvaluationSetConfig]) -> dict[str, EvaluationSetConfig]:
        for name in sets:
            if not _SET_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} names metrics: write letters, digits, dashes, underscores and dots "
                    "inside"
                )
        return sets

    def of_set(self, name: str) -> "EvaluationConfig":
        """Return these settings with those of one set in their place."""
        section = self.sets[name]
        values = {key: getattr(section, key) for key in PER_SET}
        return self.model_copy(
            update={key: value for key, value in values.items() if value is not None}
        )
