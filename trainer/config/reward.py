"""Scoring of completions."""

from typing import Annotated

from pydantic import Field, model_validator

from loptune.section import Count, NonNegative, Positive, Section, needs, refusal


class RewardConfig(Section):
    """Scoring of completions."""

    functions: dict[str, float] = Field({"knights_knaves": 1.0}, min_length=1)
    """reward name or module:function -> weight"""
    timeout_s: Positive = 5.0
    """time limit per completion, or per call of a batch function [s]"""
    memory_mb: int = Field(1024, ge=16)
    """memory limit of scoring, in addition to the imports [MiB]"""
    workers: Count = 1
    """number of scoring processes; at most 4 per core, each takes at least 64 MB"""
    environment: list[str] = Field(default_factory=list)
    """environment variables to pass to scoring although they look like secrets, such as
    OPENAI_API_KEY
    """
    overlong_buffer: Annotated[int, Field(ge=0)] = 0
    """tokens before max_new_tokens over which DAPO's soft overlong penalty rises; 0 is off"""
    overlong_penalty: NonNegative = needs("overlong_buffer", 1.0)
    """penalty at max_new_tokens"""

    @model_validator(mode="after")
    def _check(self) -> "RewardConfig":
        if not any(self.functions.values()):
            raise refusal(
                "all-weights-zero",
                "all weights are 0, so every completion would get reward 0: set at least one "
                "weight",
            )
        return self
