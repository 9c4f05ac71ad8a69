"""Evaluation settings."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from trainer.config.data import DatasetConfig, as_dataset
from trainer.section import Completions, Count, Fraction, NonNegative, Section

_SET_NAME = re.compile(r"\w[\w.-]*")
PER_SET = ("temperature", "completions_per_problem")  # settings that a set may override


class EvaluationSetConfig(DatasetConfig):
    """An evaluation dataset and its overrides."""

    temperature: NonNegative | None = None
    """sampling temperature on this set; evaluation.temperature if null"""
    completions_per_problem: Completions | None = None
    """completions per problem of this set; evaluation.completions_per_problem if null"""


EvaluationSet = Annotated[
    EvaluationSetConfig, BeforeValidator(as_dataset, str | EvaluationSetConfig)
]


class EvaluationConfig(Section):
    """Evaluation during training."""

    every_steps: Count = 20
    """training steps between evaluations"""
    at_start: bool = True
    """evaluate before the first step"""
    sets: dict[str, EvaluationSet] = Field({"dev": EvaluationSetConfig(split="dev", size=100)})
    """name -> dataset; the first set defines `eval/accuracy`"""
    temperature: NonNegative = 0.0
    """0 is greedy"""
    top_p: Fraction = 1.0
    """probability mass of nucleus sampling"""
    completions_per_problem: Completions = 1
    """completions per problem (k of pass@k); accuracy is the mean over them"""

    @field_validator("sets")
    @classmethod
    def _check_sets(cls, sets: dict[str, EvaluationSetConfig]) -> dict[str, EvaluationSetConfig]:
        for name in sets:
            if not _SET_NAME.fullmatch(name):
                raise ValueError(
                    f"invalid set name {name!r}: use letters, digits, underscores, dashes and "
                    "dots, because metric names contain it"
                )
        return sets

    def of_set(self, name: str) -> "EvaluationConfig":
        """Return these settings with one set's overrides applied."""
        section = self.sets[name]
        values = {key: getattr(section, key) for key in PER_SET}
        return self.model_copy(
            update={key: value for key, value in values.items() if value is not None}
        )
