"""Tokens that a loss singles out: those it holds still, or pulls back."""

from dataclasses import replace

import torch

from trainer.algorithm.token_filters import counted_tokens
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.inputs import Gather
from trainer.rules.own import errors_named
from trainer.types import TrainBatch


def choose_tokens(
    batch: TrainBatch,
    config: AlgorithmConfig,
    generator: torch.Generator | None = None,
    gather: Gather = lambda items: items,
) -> TrainBatch:
    """Return the scored batch, advantages before AR, with the tokens that the loss singles out, if it does."""
    with errors_named(config.loss):
        chosen = config.loss.choose(batch, counted_tokens(batch, config), gather, generator)
    return replace(batch, chosen=chosen)
