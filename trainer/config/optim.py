"""The optimizer and what bounds its forward passes."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.section import Count, NonNegative, Positive, Section

_Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: Positive = Field(1e-6, description="learning rate")
    betas: tuple[_Decay, _Decay] = Field((0.9, 0.999), description="AdamW betas")
    eps: Positive = Field(1e-8, description="AdamW epsilon")
    weight_decay: NonNegative = Field(0.01, description="AdamW weight decay")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="schedule after warm-up")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(0, description="training steps of linear warm-up")
    max_grad_norm: Positive = Field(1.0, description="gradient clipping norm")
    update_batch_size: Count = Field(256, description="completions per optimizer step, over all ranks")
    tokens_per_microbatch: Count = Field(
        16384, description="maximum tokens of a forward-backward pass, padding included"
    )
    old_logprobs: Literal["recompute", "rollout"] = Field(
        "recompute",
        description="old log-probabilities: recompute them, or use the engine's, which saves a forward pass",
    )
