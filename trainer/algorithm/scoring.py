"""Log-probabilities of a rollout batch: those of the policy before its update, and those of the reference."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from trainer.algorithm.batching import UpdateBatch, select_rows
from trainer.policy.logprobs import TokenScores
from trainer.types import TrainBatch


def attach_logprobs(
    batch: TrainBatch, policy: nn.Module | None, reference: nn.Module | None, plan: Sequence[UpdateBatch]
) -> TrainBatch:
    """The batch with old and reference log-probabilities, entropies and gradient norms.

    Where the plan keeps forwards, those of the policy are kept with their graphs. Without a policy the engine's
    log-probabilities are the old ones, and entropies and gradient norms stay 0.
    """
    ref_logprobs = (
        score_batch(reference, batch, plan, with_entropy=False).logprobs if reference is not None else None
    )
    if policy is None:
        assert batch.rollout_logprobs is not None
        return replace(
            batch, old_logprobs=batch.rollout_logprobs, rollout_logprobs=None, ref_logprobs=ref_logprobs
        )
    scores = score_batch(policy, batch, plan, with_entropy=True, keep=True)
    assert scores.entropies is not None and scores.gradient_norms is not None
    return replace(
        batch,
        old_logprobs=scores.logprobs,
        ref_logprobs=ref_logprobs,
        entropies=scores.entropies,
        gradient_norms=scores.gradient_norms,
    )


@torch.no_grad()
def score_batch(
    model: nn.Module, batch: TrainBatch, plan: Sequence[UpdateBatch], with_entropy: bool, keep: bool = False
) -> TokenScores:
    """Log-probabilities of all rows, computed in the microbatches in which they will be updated; [B, T].

    Args:
        model: a `LogprobModel`, possibly wrapped.
        batch: B rows.
        plan: update batches that cover them.
        with_entropy: also give entropies and gradient norms.
        keep: keep forwards with their graphs in the plan, as far as it has room for them.
    """
    logprobs = torch.zeros_like(batch.completion_mask)
    entropies = torch.zeros_like(batch.completion_mask)
    gradient_norms = torch.zeros_like(batch.completion_mask)
    for update_batch in plan:
        for index, rows in enumerate(update_batch.microbatches):
            part = select_rows(batch, rows if len(rows) else update_batch.stand_in)
            tokens = part.input_ids.numel()
            keeps_graph = keep and update_batch.kept.has_room(tokens)
            with torch.set_grad_enabled(keeps_graph):
                scores: TokenScores = model(
                    part.input_ids, part.prompt_lengths, part.completion_mask, with_entropy
                )
            if keeps_graph:
                update_batch.kept.keep(index, scores, tokens)
            if len(rows) == 0:
                continue
            width = part.completion_mask.shape[1]
            logprobs[rows, :width] = scores.logprobs.detach()
            if scores.entropies is not None and scores.gradient_norms is not None:
                entropies[rows, :width] = scores.entropies
                gradient_norms[rows, :width] = scores.gradient_norms
    return TokenScores(logprobs, entropies, gradient_norms) if with_entropy else TokenScores(logprobs, None)
