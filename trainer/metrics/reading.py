"""Reduce a step's metrics with one device transfer and one collective."""

from collections.abc import Generator, Mapping, Sequence

import torch
from torch import Tensor

from trainer.parallel.ranks import Parallel

# metrics reduced by maximum; the others are summed
LARGEST = ("rollout/engine_logprob_diff_max", "policy/ratio_max", "memory/peak")

# A generator that yields its local sums on their device, receives the sums of all ranks (float64 on
# the host), and returns metrics.
Metrics = Generator[Mapping[str, Tensor | float], list[dict[str, Tensor]], dict[str, float]]


def read_metrics(metrics: Sequence[Metrics], parallel: Parallel) -> dict[str, float]:
    """Run the metric generators with one device transfer and one collective, and merge their
    results.
    """
    asked = [next(reader) for reader in metrics]
    sums = [
        torch.as_tensor(value, dtype=torch.float64) for reader in asked for value in reader.values()
    ]
    far = [value.flatten() for value in sums if value.device.type != "cpu"]
    read = iter(torch.cat(far).cpu().split([*map(len, far)]) if far else ())
    on_host = iter(
        [value if value.device.type == "cpu" else next(read).view_as(value) for value in sums]
    )
    of_rank = [{name: next(on_host) for name in reader} for reader in asked]
    everyone: list[list[dict[str, Tensor]]] = parallel.gather([of_rank])
    result: dict[str, float] = {}
    for reader, of_ranks in zip(metrics, zip(*everyone, strict=True), strict=True):
        try:
            reader.send(list(of_ranks))
        except StopIteration as end:
            result |= end.value
    return result


def over_ranks(everyone: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Reduce over ranks: maximum for `LARGEST`, sum for the others."""
    names = dict.fromkeys(name for of_rank in everyone for name in of_rank)
    parts = {
        name: torch.stack([of_rank[name] for of_rank in everyone if name in of_rank])
        for name in names
    }
    return {
        name: part.amax(dim=0) if name in LARGEST else part.sum(dim=0)
        for name, part in parts.items()
    }


def means(totals: Mapping[str, Tensor]) -> dict[str, float]:
    """Divide totals by the count (stored under the empty name), except those of `LARGEST`."""
    count = max(float(totals[""]), 1.0)
    return {
        name: float(total) / (1.0 if name in LARGEST else count)
        for name, total in totals.items()
        if name
    }
