"""Update statistics by token probability [arXiv:2505.12929, section 4].

Tokens are grouped by ``exp(old_logprob)`` into fixed bands, so that runs are comparable. Most
tokens of a trained policy fall into the highest of the paper's four bands, so that band is split in
two.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.algorithm.batching import lengths_to_mask
from trainer.algorithm.loss import kl_penalty
from trainer.algorithm.update import UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.metrics.step import Metrics, over_ranks
from trainer.types import TrainBatch

_EDGES = (0.25, 0.5, 0.75, 0.99)
BANDS = ("0.00-0.25", "0.25-0.50", "0.50-0.75", "0.75-0.99", "0.99-1.00")


def band_of(logprobs: Tensor) -> Tensor:
    """Return each token's index into `BANDS`. A band includes its lower edge."""
    edges = torch.tensor(_EDGES).to(logprobs.device, non_blocking=True)
    return torch.bucketize(logprobs.exp(), edges, right=True)


def _sums_by_band(values: Sequence[Tensor], logprobs: Tensor) -> Tensor:
    """Return the per-band sums of each [N] tensor, [len(values), bands] float64."""
    members = torch.nn.functional.one_hot(band_of(logprobs), len(BANDS))
    return torch.stack([value.double() for value in values]) @ members.double()


def band_metrics(
    batch: TrainBatch, statistics: UpdateStatistics, algorithm: AlgorithmConfig
) -> Metrics:
    """Return the ``tokens/*`` metrics of a step. An empty band has fractions of 0 and no means.

    ``advantage_fraction`` is the band's fraction of ``sum |A|`` and ``gradient_fraction`` its
    fraction of ``sum |A| * norm``, where ``norm`` is the gradient norm of the token's
    log-probability with respect to the logits. This is the gradient signal at the last layer in the
    first update, before loss weights. Gradient fractions and entropies are absent if the engine's
    log-probabilities are used as old ones.
    """
    place = _completion_tokens(batch)
    logprobs = batch.old_logprobs[place]
    mass = batch.advantages[place].abs()
    values = {
        "tokens": torch.ones_like(mass),
        "mass": mass,
        "updated": statistics.times_updated[place],
        "clipped": statistics.times_clipped[place],
    }
    if batch.ref_logprobs is not None:
        values["kl"] = kl_penalty(logprobs, batch.ref_logprobs[place], algorithm)
    if batch.entropies is not None:
        values["entropy"] = batch.entropies[place]
    if batch.gradient_norms is not None:
        values["gradient"] = mass * batch.gradient_norms[place]
    everyone = yield {"sums by band": _sums_by_band([*values.values()], logprobs)}
    sums = dict(zip(values, over_ranks(everyone)["sums by band"], strict=True))

    metrics = _fractions("token_fraction", sums["tokens"]) | _fractions(
        "advantage_fraction", sums["mass"]
    )
    metrics |= _means("clip_fraction", sums["clipped"], sums["updated"])
    for name in ("entropy", "kl"):
        metrics |= _means(name, sums[name], sums["tokens"]) if name in sums else {}
    if "gradient" in sums:
        metrics |= _fractions("gradient_fraction", sums["gradient"])
    return metrics


def _completion_tokens(batch: TrainBatch) -> tuple[Tensor, Tensor]:
    """Return the row and column indices of the completion tokens, [N] each. Computed on the host to
    avoid a GPU synchronization.
    """
    places = torch.stack(lengths_to_mask(batch.completion_lengths).nonzero(as_tuple=True))
    rows, columns = places.to(batch.completion_mask.device, non_blocking=True)
    return rows, columns


def _fractions(quantity: str, sums: Tensor) -> dict[str, float]:
    total = float(sums.sum())
    if total:
        return {f"tokens/{quantity}/{name}": value / total for name, value in _named(sums)}
    return {}


def _means(quantity: str, sums: Tensor, counts: Tensor) -> dict[str, float]:
    means = {}
    for (name, value), count in zip(_named(sums), counts.tolist(), strict=True):
        if count:
            means[f"tokens/{quantity}/{name}"] = value / count
    return means


def _named(values: Tensor) -> list[tuple[str, float]]:
    return list(zip(BANDS, values.tolist(), strict=True))
