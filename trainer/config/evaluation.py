"""Evaluation settings."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from loptune.section import Completions, Count, Fraction, NonNegative, Section, refusal
from trainer.config.data import DatasetConfig, PromptFormat, Task, as_dataset

_SET_NAME = re.compile(r"\w[\w.-]*")
# evaluation settings that a single set may override
OVERRIDABLE_PER_SET = ("temperature", "completions_per_problem", "pass_at_k", "max_new_tokens")


class EvaluationSetConfig(DatasetConfig):
    """An evaluation dataset and its overrides."""

    temperature: NonNegative | None = None
    """sampling temperature on this set; evaluation.temperature if null"""
    completions_per_problem: Completions | None = None
    """completions per problem of this set; evaluation.completions_per_problem if null"""
    pass_at_k: list[Completions] | None = None
    """values of k for this set; if null: evaluation.pass_at_k, or no values if the set has its own
    completions_per_problem
    """
    max_new_tokens: Count | None = None
    """completion limit on this set; evaluation.max_new_tokens if null [tokens]"""
    task: Task | None = None
    """task of this set, with its prompt, prefill and columns; data.task if null"""
    prompt_format: PromptFormat | None = None
    """prompt format of this set; data.prompt_format if null"""
    reward: dict[str, float] | None = Field(None, min_length=1)
    """reward name or module:function -> weight, for this set; reward.functions if null"""

    @field_validator("reward")
    @classmethod
    def _check_weights(cls, reward: dict[str, float] | None) -> dict[str, float] | None:
        if reward is not None and not any(reward.values()):
            raise refusal("all-weights-zero", "all weights are 0: set at least one weight")
        return reward


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
    """sampling temperature; 0 is greedy"""
    top_p: Fraction = 1.0
    """top-p (nucleus) sampling; 1 is off"""
    completions_per_problem: Completions = 1
    """completions per problem; accuracy is the mean over them"""
    pass_at_k: list[Completions] = Field([])
    """values of k for `eval/pass_at/K`, each at most completions_per_problem; `eval/pass_at_k`
    always has k = completions_per_problem
    """
    max_new_tokens: Count | None = None
    """completion limit; rollout.max_new_tokens if null [tokens]"""
    composite: dict[str, NonNegative] = Field({})
    """SET or SET/pass@K -> weight: `eval/composite` is the weighted mean of these values"""

    @field_validator("sets")
    @classmethod
    def _check_sets(cls, sets: dict[str, EvaluationSetConfig]) -> dict[str, EvaluationSetConfig]:
        for name in sets:
            if not _SET_NAME.fullmatch(name):
                raise refusal(
                    "invalid-set-name",
                    f"invalid set name {name!r}: start with a letter, digit or underscore, and use "
                    "only these, dashes and dots, because metric names contain it",
                )
        return sets

    def of_set(self, name: str) -> "EvaluationConfig":
        """Return these settings with one set's overrides applied."""
        section = self.sets[name]
        changes: dict[str, Any] = {}
        for key in OVERRIDABLE_PER_SET:
            value = getattr(section, key)
            if value is not None:
                changes[key] = value
        if "completions_per_problem" in changes:
            # the values of the other sets may exceed this set's number of completions
            changes.setdefault("pass_at_k", [])
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _check_composite(self) -> "EvaluationConfig":
        if self.composite and not any(self.composite.values()):
            raise refusal("all-weights-zero", "all weights are 0: set at least one weight")
        for term in self.composite:
            name, _, quantity = term.partition("/")
            if name not in self.sets:
                raise refusal(
                    "composite-unknown-set",
                    f"composite has the set {name!r}, which evaluation.sets does not define: use "
                    f"{', '.join(self.sets)}",
                )
            section = self.of_set(name)
            measured = {*section.pass_at_k, section.completions_per_problem} - {1}
            if quantity and quantity not in {f"pass@{k}" for k in measured}:
                ks = ", ".join(f"{name}/pass@{k}" for k in sorted(measured)) or "no pass@K"
                raise refusal(
                    "composite-unmeasured",
                    f"composite has {term!r}, but set {name} measures {ks}: change the term, or "
                    f"evaluation.sets.{name}.pass_at_k",
                )
        return self

    @model_validator(mode="after")
    def _check_pass_at_k(self) -> "EvaluationConfig":
        for name in self.sets:
            section = self.of_set(name)
            largest = max(section.pass_at_k, default=0)
            if largest > section.completions_per_problem:
                raise refusal(
                    "pass-at-k-too-large",
                    f"pass@{largest} needs {largest} completions per problem, but set {name} has "
                    f"completions_per_problem {section.completions_per_problem}: raise it, or "
                    "lower pass_at_k",
                )
        return self
