"""Scoring of completions."""

from typing import Annotated

from pydantic import Field, model_validator

from trainer.section import Count, NonNegative, Positive, Section, needs


class RewardConfig(Section):
    """Scoring of completions."""

    functions: dict[str, float] = Field(
        {"knights_knaves": 1.0}, description="reward name or module:function -> weight", min_length=1
    )
    timeout_s: Positive = Field(5.0, description="time limit of a completion, or a batch function's call [s]")
    memory_mb: int = Field(
        1024, ge=16, description="memory a completion's scoring may take, beyond the process's imports [MiB]"
    )
    workers: Count = Field(1, le=256, description="scoring processes, of 64 MB at least")
    environment: list[str] = Field(
        default_factory=list,
        description="variables that scoring inherits although they are named like secrets, as OPENAI_API_KEY",
    )
    overlong_buffer: Annotated[int, Field(ge=0)] = Field(
        0, description="tokens before max_new_tokens over which DAPO's soft penalty rises; 0 is off [tokens]"
    )
    overlong_penalty: NonNegative = Field(
        1.0, description="penalty at max_new_tokens", json_schema_extra=needs("overlong_buffer")
    )

    @model_validator(mode="after")
    def _check(self) -> "RewardConfig":
        if not any(self.functions.values()):
            raise ValueError("every weight is 0: no completion would be better than another")
        return self
