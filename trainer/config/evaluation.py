"""Evaluation of the policy while it trains."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from trainer.config.data import DatasetConfig, as_dataset
from trainer.section import Count, Fraction, NonNegative, Section


class EvaluationSetConfig(DatasetConfig):
    """A dataset to evaluate on, and what is done otherwise than for the other sets."""

    temperature: NonNegative | None = Field(None, description="of this set; evaluation.temperature if null")
    completions_per_problem: Count | None = Field(
        None, description="of this set; evaluation.completions_per_problem if null"
    )
    pass_at_k: Count | None = Field(None, description="k of this set's pass@k; evaluation.pass_at_k if null")


EvaluationSet = Annotated[EvaluationSetConfig, BeforeValidator(as_dataset, str | EvaluationSetConfig)]


class EvaluationConfig(Section):
    """Measuring the policy while it trains."""

    every_steps: Count = Field(20, description="training steps between evaluations")
    at_start: bool = Field(True, description="evaluate before the first step")
    sets: dict[str, EvaluationSet] = Field(
        {"dev": EvaluationSetConfig(split="dev", size=100)},
        description="name -> dataset; the first is `eval/accuracy`",
    )
    temperature: NonNegative = Field(0.0, description="0 is greedy")
    top_p: Fraction = Field(1.0, description="probability mass of nucleus sampling")
    completions_per_problem: Count = Field(1, description="completions per problem; its accuracy is their mean")
    pass_at_k: Count | None = Field(None, description="k of pass@k; completions_per_problem if null")

    def of_set(self, name: str) -> "EvaluationConfig":
        """These settings with those of one set in their place."""
        own = self.sets[name]
        values = {key: getattr(own, key) for key in ("temperature", "completions_per_problem", "pass_at_k")}
        changes: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
        if own.completions_per_problem is not None:
            changes.setdefault("pass_at_k", None)  # that of the others may be more than this set has
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _check(self) -> "EvaluationConfig":
        for own in (self, *map(self.of_set, self.sets)):
            if own.pass_at_k is not None and own.pass_at_k > own.completions_per_problem:
                raise ValueError(
                    f"pass@{own.pass_at_k} needs at least {own.pass_at_k} completions of a problem: raise "
                    "completions_per_problem or lower pass_at_k"
                )
        return self
