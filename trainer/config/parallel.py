"""Parallel training over several ranks."""

from typing import Literal

from pydantic import model_validator

from trainer.section import Count, Section, needs


class ParallelConfig(Section):
    """Several ranks training one model, started by torchrun, `accelerate launch` or a sweep."""

    strategy: Literal["none", "ddp", "deepspeed"] = "none"
    """none: one process; ddp: whole copies; deepspeed: ZeRO"""
    zero_stage: Literal[0, 1, 2, 3] = needs("strategy=deepspeed", 2)
    """shards: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters"""
    offload: Literal["none", "optimizer", "parameters"] = needs("strategy=deepspeed", "none")
    """keep the optimizer's shards, or those of the parameters too, in CPU memory"""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: a GPU if there is one; cuda: stop if there is none; cpu: use no GPU"""
    timeout_s: Count = needs("strategy=ddp|deepspeed", 600)
    """time limit of a rank's wait for the others [s]"""

    @model_validator(mode="after")
    def _check(self) -> "ParallelConfig":
        lowest = {"none": 0, "optimizer": 1, "parameters": 3}[self.offload]
        if self.zero_stage < lowest:
            raise ValueError(f"offload {self.offload} needs zero_stage {lowest} or higher")
        return self
