"""Where in the range of token probabilities the update comes from [arXiv:2505.12929, section 4].

Tokens are grouped by ``exp(old_logprob)``: in fixed bands, which mean the same in every run, and in quartiles of
the batch. In a trained policy most tokens lie in the highest of the paper's four bands, so here it is parted.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.algorithm.kl import kl_penalty
from trainer.algorithm.update import UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.parallel.ranks import Parallel
from trainer.types import TrainBatch

EDGES = (0.25, 0.5, 0.75, 0.99)
BANDS = ("0.00-0.25", "0.25-0.50", "0.50-0.75", "0.75-0.99", "0.99-1.00")
PUBLISHED_BANDS = ("0.00-0.25", "0.25-0.50", "0.50-0.75", "0.75-1.00")  # of arXiv:2505.12929, figures 1 and 3
RESOLUTION = 2e-6  # nats: smaller differences of log-probabilities are the rounding of float32 logits
QUARTILES = ("q1", "q2", "q3", "q4")  # q1 holds the least probable quarter


def band_of(logprobs: Tensor) -> Tensor:
    """Index into `BANDS` of each token's probability; a band holds its lower edge."""
    return torch.bucketize(logprobs.exp(), torch.tensor(EDGES, device=logprobs.device), right=True)


def published_band_of(logprobs: Tensor) -> Tensor:
    """Index into `PUBLISHED_BANDS` of each token's probability; a band holds its lower edge."""
    return torch.bucketize(logprobs.exp(), torch.tensor(EDGES[:3], device=logprobs.device), right=True)


def quartile_of(logprobs: Tensor) -> Tensor:
    """Index into `QUARTILES` of each of N tokens by rank, [N]; equal probabilities are split in their order."""
    order = logprobs.argsort(stable=True)
    quartiles = torch.empty_like(order)
    quartiles[order] = torch.arange(len(order), device=order.device) * 4 // max(1, len(order))
    return quartiles


def _quartile_over_ranks(logprobs: Tensor, parallel: Parallel) -> Tensor:
    """Index into `QUARTILES` of each of this rank's tokens among those of all ranks, [N]."""
    everyone: list[Tensor] = parallel.gather([logprobs.cpu()])
    before = sum(len(of_rank) for of_rank in everyone[: parallel.rank])
    return quartile_of(torch.cat(everyone))[before : before + len(logprobs)].to(logprobs.device)


def sums_by_group(values: Sequence[Tensor], groups: Tensor, count: int) -> Tensor:
    """Sums of each [N] tensor over the tokens of each of ``count`` groups, [len(values), count] float64."""
    members = torch.nn.functional.one_hot(groups, count).double()  # [N, count]
    return torch.stack([value.double() for value in values]) @ members


def band_metrics(
    batch: TrainBatch, statistics: UpdateStatistics, algorithm: AlgorithmConfig, parallel: Parallel
) -> dict[str, float]:
    """``tokens/*`` of one step; a band without tokens has shares of 0 and no means.

    ``advantage_share`` is the band's part of ``sum |A|``, ``gradient_share`` of ``sum |A| * norm``, with ``norm``
    that of the gradient of the token's log-probability with respect to the logits: what the tokens send into the
    last layer at the first update, before loss weights. Quartiles are those of the tokens of all ranks.

    Args:
        batch: scored, with reweighted advantages.
        statistics: of the step's updates; entropies are means over the tokens whose forward there was.
        algorithm: its KL estimator.
        parallel: the ranks.
    """
    place = batch.completion_mask.bool()
    logprobs = batch.old_logprobs[place]
    mass = batch.advantages[place].abs()
    norms = batch.gradient_norms[place]
    values = [torch.ones_like(mass), mass, mass * norms, batch.entropies[place]]
    if batch.ref_logprobs is not None:
        values.append(kl_penalty(logprobs, batch.ref_logprobs[place], algorithm))
    known = torch.ones_like(mass) if statistics.first is None else statistics.first.known[place]
    values += [known, statistics.times_updated[place], statistics.times_clipped[place]]
    by_band = sums_by_group(values, band_of(logprobs), len(BANDS))
    by_quartile = sums_by_group([mass * norms], _quartile_over_ranks(logprobs, parallel), len(QUARTILES))
    flat = torch.cat([by_band.flatten(), by_quartile.flatten()])
    totals = torch.tensor(parallel.gather([flat.tolist()]), dtype=torch.float64).sum(dim=0)
    bands, quartiles = totals.split([by_band.numel(), by_quartile.numel()])

    tokens, *rest, known, updated, clipped = bands.view(len(values), -1)
    metrics = _shares("token_share", tokens, BANDS) | _shares("advantage_share", rest[0], BANDS)
    metrics |= _shares("gradient_share", rest[1], BANDS) | _shares("gradient_share", quartiles, QUARTILES)
    metrics |= _means("entropy", rest[2], known) | _means("clip_fraction", clipped, updated)
    return metrics | (_means("kl", rest[3], tokens) if batch.ref_logprobs is not None else {})


def change_metrics(batch: TrainBatch, new_logprobs: Tensor, parallel: Parallel) -> dict[str, float]:
    """What the step did to its own tokens, from their log-probabilities [B, T] after it.

    ``tokens/probability_change`` is the mean of ``pi_new - pi_old`` in each band; ``tokens/positive_rose`` and
    ``tokens/negative_fell`` are the shares of those that rose (fell) among the tokens with positive (negative)
    advantage whose log-probability changed by more than ``RESOLUTION`` [arXiv:2505.12929, figure 3].
    """
    place = batch.completion_mask.bool()
    old, new = batch.old_logprobs[place], new_logprobs[place]
    sign = batch.advantages[place].sign()
    change = old.exp() * torch.expm1(new - old)
    moved = torch.where((new - old).abs() > RESOLUTION, new - old, 0).sign()
    as_signed, moved = sign * moved > 0, moved != 0
    values = [torch.ones_like(old), change, (sign > 0) & moved, (sign > 0) & as_signed]
    values += [(sign < 0) & moved, (sign < 0) & as_signed]
    sums = sums_by_group(values, band_of(old), len(BANDS))
    totals = torch.tensor(parallel.gather([sums.tolist()]), dtype=torch.float64).sum(dim=0)
    tokens, changed, *signs = totals
    positive, rose, negative, fell = (float(count.sum()) for count in signs)
    metrics = _means("probability_change", changed, tokens)
    if positive:
        metrics["tokens/positive_rose"] = rose / positive
    if negative:
        metrics["tokens/negative_fell"] = fell / negative
    return metrics


def _shares(quantity: str, sums: Tensor, names: Sequence[str]) -> dict[str, float]:
    total = float(sums.sum())
    return {f"tokens/{quantity}/{name}": value / total for name, value in _named(names, sums)} if total else {}


def _means(quantity: str, sums: Tensor, counts: Tensor) -> dict[str, float]:
    return {
        f"tokens/{quantity}/{name}": value / count
        for (name, value), count in zip(_named(BANDS, sums), counts.tolist(), strict=True)
        if count
    }


def _named(names: Sequence[str], values: Tensor) -> list[tuple[str, float]]:
    return list(zip(names, values.tolist(), strict=True))
