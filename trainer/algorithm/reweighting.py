"""Advantage Reweighting (AR)."""

from dataclasses import replace

from torch import Tensor

from trainer.config.algorithm import AlgorithmConfig
from trainer.types import TrainBatch


def reweight(advantages: Tensor, old_logprobs: Tensor, alpha: float) -> Tensor:
    """Return ``(alpha * pi_old(token) + 1 - alpha) * A`` [arXiv:2505.12929, equation 4], [B, T].

    Low-probability tokens have the largest gradients; AR scales down their advantages. ``alpha =
    0`` is off.
    """
    return (alpha * old_logprobs.exp() + 1 - alpha) * advantages


def reweight_advantages(batch: TrainBatch, config: AlgorithmConfig) -> TrainBatch:
    """Return the batch with reweighted advantages."""
    return replace(
        batch, advantages=reweight(batch.advantages, batch.old_logprobs, config.ar_alpha)
    )
