"""Scoring of completions."""

from typing import Annotated

from pydantic import Field, model_validator

from trainer.section import Count, NonNegative, Positive, Section, needs


class RewardConfig(Section):
    """Scoring of completions."""

    functions: dict[str, float] = Field({"knights_knaves": 1.0}, min_length=1)
    """reward name or module:function -> weight"""
    timeout_s: Positive = 5.0
    """time limit of a completion, or a batch function's call [s]"""
    memory_mb: int = Field(1024, ge=16)
    """memory a completion's scoring may take, beyond the process's imports [MiB]"""
    workers: Count = 1
    """scoring processes, of 64 MB at least; at most 4 for each core of the machine"""
    environment: list[str] = Field([])
    """variables that scoring inherits although they are named like secrets, as OPENAI_API_KEY"""
    overlong_buffer: Annotated[int, Field(ge=0)] = 0
    """tokens before max_new_tokens over which DAPO's soft penalty rises; 0 is off [tokens]"""
    overlong_penalty: NonNegative = needs("overlong_buffer", 1.0)
    """penalty at max_new_tokens"""

    @model_validator(mode="after")
    def _check(self) -> "RewardConfig":
        if not any(self.functions.values()):
            raise ValueError("every weight is 0: no completion would be better than another")
        return self
