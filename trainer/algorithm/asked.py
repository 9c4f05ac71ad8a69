"""Which log-probabilities a pass needs, and as much of the rows as they depend on."""

import torch
from torch import Tensor

from trainer.config.algorithm import AlgorithmConfig
from trainer.types import TrainBatch


def asked_tokens(token_mask: Tensor, completion_mask: Tensor, config: AlgorithmConfig) -> Tensor:
    """1 at the tokens whose log-probabilities the loss of a pass depends on, [B, T].

    Those of the pass; where one ratio stands for the completion, all tokens of a completion that has one of them.

    Args:
        token_mask: [B, T], 1 at the tokens of the pass.
        completion_mask: [B, T].
        config: its loss.
    """
    if config.loss == "gspo":
        return completion_mask * token_mask.any(dim=1, keepdim=True)
    return token_mask


def cut_rows(part: TrainBatch, asked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [b, L], prompt lengths [b] and mask [b, T] of some rows, as far as the last token asked for.

    Args:
        part: b rows.
        asked: [b, T], 1 at the tokens whose log-probabilities are needed, at least one.
    """
    last = _last(asked)
    longest = int((part.prompt_lengths + last).max())
    return part.input_ids[:, :longest], part.prompt_lengths, asked[:, : int(last.max())]


def tokens_to_compute(batch: TrainBatch, asked: Tensor, rows: Tensor) -> int:
    """Positions that a model must see for the tokens asked for: a prompt once, completions up to the last of them.

    The last one itself is predicted by the position before it.

    Args:
        batch: B rows.
        asked: [B, T].
        rows: those that count, [b].
    """
    last = _last(asked[rows])
    _, groups = batch.group_ids[rows].unique(return_inverse=True)
    prompts = torch.zeros_like(groups).scatter_reduce(0, groups, batch.prompt_lengths[rows] * (last > 0), "amax")
    return int(prompts.sum() + (last - 1).clamp_min(0).sum())


def _last(asked: Tensor) -> Tensor:
    """Completion tokens of each row up to the last one asked for, [b]; 0 where there is none."""
    places = torch.arange(1, asked.shape[1] + 1, device=asked.device)
    return (asked.bool() * places).amax(dim=1)
