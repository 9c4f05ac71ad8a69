"""Parallel training over several ranks."""

from typing import Literal

from pydantic import Field, model_validator

from trainer.section import Count, Section, needs


class ParallelConfig(Section):
    """Several ranks training one model, started by torchrun, `accelerate launch` or a sweep."""

    strategy: Literal["none", "ddp", "deepspeed"] = Field(
        "none", description="none: one process; ddp: whole copies; deepspeed: ZeRO"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        2,
        description="shards: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters",
        json_schema_extra=needs("strategy=deepspeed"),
    )
    offload: Literal["none", "optimizer", "parameters"] = Field(
        "none",
        description="keep the optimizer's shards, or those of the parameters too, in CPU memory",
        json_schema_extra=needs("strategy=deepspeed"),
    )
    device: Literal["auto", "cuda", "cpu"] = Field(
        "auto", description="auto: a GPU if there is one; cuda: stop if there is none; cpu: use no GPU"
    )
    timeout_s: Count = Field(
        600,
        description="time limit of a rank's wait for the others [s]",
        json_schema_extra=needs("strategy=ddp|deepspeed"),
    )

    @model_validator(mode="after")
    def _check(self) -> "ParallelConfig":
        lowest = {"none": 0, "optimizer": 1, "parameters": 3}[self.offload]
        if self.zero_stage < lowest:
            raise ValueError(f"offload {self.offload} needs zero_stage {lowest} or higher")
        return self
