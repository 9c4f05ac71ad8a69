"""Optimizer and batch settings."""

from typing import Annotated, Literal

from pydantic import Field

from loptune.section import Count, NonNegative, Positive, Section

_Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: Positive = 1e-6
    """learning rate"""
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    """AdamW betas"""
    eps: Positive = 1e-8
    """AdamW epsilon"""
    weight_decay: NonNegative = 0.01
    """AdamW weight decay"""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """schedule after warm-up"""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """training steps of linear warm-up"""
    max_grad_norm: Positive = 1.0
    """gradient clipping norm"""
    update_batch_size: Count = 256
    """completions per optimizer step (mini-batch), over all ranks"""
    tokens_per_microbatch: Count = 16384
    """maximum tokens per microbatch, including padding"""
    old_logprobs: Literal["recompute", "rollout"] = "recompute"
    """recompute: old log-probabilities from the trainer; rollout: from the engine, which saves a
    forward pass
    """
