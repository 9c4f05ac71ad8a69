"""Log-probabilities of a rollout batch under the policy before its update and under the
reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from loptune.errors import check_finite
from trainer.algorithm.batching import (
    UpdateBatch,
    build_batch,
    lengths_to_mask,
    plan_update_batches,
    select_rows,
)
from trainer.config.optim import OptimConfig
from trainer.parallel.models import Models
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import CachedForward, TokenScores
from trainer.types import RolloutGroup, TrainBatch


@dataclass
class Scorer:
    """Builder of a training step's batch with old and reference log-probabilities."""

    optim: OptimConfig
    models: Models
    pad_token_id: int
    parallel: Parallel

    def score(self, groups: Sequence[RolloutGroup]) -> tuple[TrainBatch, list[UpdateBatch]]:
        """Return the batch of this rank's groups with log-probabilities but no advantages, and its
        update batches.
        """
        batch = build_batch(groups, self.pad_token_id, self.parallel.device)
        plan = plan_update_batches(
            batch,
            self.optim.update_batch_size // self.parallel.world_size,
            self.optim.tokens_per_microbatch,
            self.parallel.gather,
            self.models.layout,
        )
        policy = self.models.policy if self.optim.old_logprobs == "recompute" else None
        return attach_logprobs(
            batch, policy, self.models.reference, plan, self.models.cached_forward
        ), plan


def check_logprobs_finite(batch: TrainBatch, step: int, parallel: Parallel) -> None:
    """Raise if a log-probability or entropy is NaN or infinite. With equal rewards the loss would
    not show it.

    Raises:
        DivergedError: non-finite values on any rank.
    """
    scores = {
        "log-probability": batch.old_logprobs,
        "reference log-probability": batch.ref_logprobs,
        "entropy": batch.entropies,
    }
    present = {name: values.double().sum() for name, values in scores.items() if values is not None}
    # one device synchronization, one collective
    sums = parallel.sum(torch.stack([*present.values()]))
    for name, total in zip(present, sums.tolist(), strict=True):
        check_finite(step, name, total)


def attach_logprobs(
    batch: TrainBatch,
    policy: nn.Module | None,
    reference: nn.Module | None,
    plan: Sequence[UpdateBatch],
    cached_forward: CachedForward | None = None,
) -> TrainBatch:
    """Return the batch with old and reference log-probabilities, entropies and gradient norms.

    If ``policy`` is None, the engine's log-probabilities are used as old ones, and entropies and
    gradient norms are None.
    """
    if reference is not None:
        batch = replace(
            batch, ref_logprobs=score_batch(reference, batch, plan, with_entropy=False).logprobs
        )
    if policy is None:
        assert batch.rollout_logprobs is not None
        batch = replace(batch, old_logprobs=batch.rollout_logprobs, rollout_logprobs=None)
        return replace(batch, entropies=None, gradient_norms=None)
    scores = score_batch(policy, batch, plan, with_entropy=True, cached_forward=cached_forward)
    return replace(
        batch,
        old_logprobs=scores.logprobs,
        entropies=scores.entropies,
        gradient_norms=scores.gradient_norms,
        token_statistics=scores.token_statistics,
    )


@torch.no_grad()
def score_batch(
    model: nn.Module,
    batch: TrainBatch,
    plan: Sequence[UpdateBatch],
    with_entropy: bool,
    cached_forward: CachedForward | None = None,
) -> TokenScores:
    """Return the log-probabilities of all rows, [B, T], computed in the same microbatches as the
    update.

    ``with_entropy`` adds entropies, gradient norms and token statistics. ``cached_forward`` caches
    the first microbatch. ``computed`` of the result is not set.
    """
    fields: dict[str, Any] = {}
    for update_batch in plan:
        for rows in update_batch.microbatches:
            part = select_rows(batch, rows if len(rows) else update_batch.dummy_row)
            mask = lengths_to_mask(part.completion_lengths)
            cache = cached_forward if rows is plan[0].microbatches[0] else None
            with torch.set_grad_enabled(cache is not None):
                scores: TokenScores = model(part.input_ids, part.prompt_lengths, mask, with_entropy)
            if cache is not None:
                cache.keep(rows, scores)
            if len(rows) == 0:
                continue
            rows = rows.to(batch.input_ids.device, non_blocking=True)
            width = part.completion_mask.shape[1]
            for name, values in scores._asdict().items():
                if isinstance(values, Tensor):
                    fields.setdefault(name, torch.zeros_like(batch.completion_mask))[
                        rows, :width
                    ] = values
    return TokenScores(**fields)
