"""Decoding batches step by step, and what their logits should be."""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from trainer.rollouts.decoding import CachedBatch, Prefill, read_prompts
from trainer.rollouts.shared_prefix import SharedPrefixBatch

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]]
PROMPT_OF_ROW = torch.tensor([0, 0, 1, 1, 1])
LIMIT = 20

MakeBatch = Callable[[PreTrainedModel, Prefill, torch.Tensor, int], CachedBatch | SharedPrefixBatch]


@torch.no_grad()
def largest_error(model: PreTrainedModel, make_batch: MakeBatch) -> float:
    """Of the logits of rows that grow and leave, against whole sequences without a cache."""
    prefill = read_prompts(model, PROMPTS, pad_token_id=0)
    rows = [list(PROMPTS[prompt]) for prompt in PROMPT_OF_ROW]
    batch = make_batch(model, prefill, PROMPT_OF_ROW, LIMIT)
    errors = [_error(model, batch.logits, rows)]
    for step in range(LIMIT):
        if step == 7:  # the whole of no prompt leaves, and the rows of the two are no longer equally many
            kept = torch.tensor([1, 2, 4])
            batch.select(kept)
            rows = [rows[row] for row in kept]
        if step == 12:  # the first prompt has no row left
            batch.select(torch.tensor([1, 2]))
            rows = rows[1:]
        tokens = torch.tensor([(7 * step + 3 * row) % 40 + 5 for row in range(len(rows))])
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.append(token)
        batch.step(tokens)
        errors.append(_error(model, batch.logits, rows))
    return max(errors)


def _error(model: PreTrainedModel, logits: torch.Tensor, rows: list[list[int]]) -> float:
    expected = [model(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1] for row in rows]
    return float((logits - torch.stack(expected)).abs().max())
