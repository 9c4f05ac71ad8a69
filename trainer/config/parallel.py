"""Parallel training over several ranks."""

from typing import Literal

from pydantic import model_validator

from loptune.section import Count, Section, needs, refusal


class ParallelConfig(Section):
    """Distributed training; ranks are started by torchrun, `accelerate launch` or a sweep."""

    strategy: Literal["none", "ddp", "deepspeed"] = "none"
    """none: one process; ddp: a full copy per rank; deepspeed: ZeRO"""
    zero_stage: Literal[0, 1, 2, 3] = needs("strategy=deepspeed", 2)
    """sharded state: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters"""
    offload: Literal["none", "optimizer", "parameters"] = needs("strategy=deepspeed", "none")
    """offload to CPU memory: optimizer state, or also parameters"""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: use a GPU if available; cuda: fail without one; cpu: ignore GPUs"""
    strict_memory: bool = False
    """fail, instead of warning, if the estimate exceeds the available memory"""
    timeout_s: Count = needs("strategy=ddp|deepspeed", 600)
    """timeout of collectives between ranks [s]"""

    @model_validator(mode="after")
    def _check(self) -> "ParallelConfig":
        lowest = {"none": 0, "optimizer": 1, "parameters": 3}[self.offload]
        if self.zero_stage < lowest:
            raise refusal(
                "offload-needs-zero", f"offload {self.offload} needs zero_stage {lowest} or higher"
            )
        return self
