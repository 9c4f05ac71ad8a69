"""Advantage estimation with the configured rule."""

from dataclasses import replace

from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.interface import AdvantageInputs, SumOverRanks
from trainer.types import TrainBatch


def estimate_advantages(
    batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks = lambda tensor: tensor
) -> TrainBatch:
    """Return the batch with advantages [B, T], 0 outside the mask. All completions of a group must
    be on one rank.

    Raises:
        ConfigError: the rule rejects the rewards, or a user-defined rule raised an exception.
    """
    kl_coef = 0.0 if config.kl_in_loss else config.kl_coef
    inputs = AdvantageInputs.of(batch, kl_coef, sum_over_ranks)
    with config.advantage.errors_located():
        advantages = config.advantage(inputs)
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    mask = batch.completion_mask
    return replace(batch, advantages=advantages.to(mask, non_blocking=True) * mask)
