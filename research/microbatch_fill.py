"""How full are microbatches, and how evenly are ranks loaded, with the lengths of real completions?

    python -m research.microbatch_fill

Update batches of 32 groups of 8 on four ranks are planned by the trainer's own code. Lengths are
drawn from ``research/data/completion_lengths.csv``, which has one completion per problem for each
model. A group consists of eight completions of any problems, or of problems whose completions have
neighboring lengths; groups of a real run are in between. Columns:

- full: tokens divided by the number of microbatches times their budget;
- bound: the same if each row could be on any rank. Padded microbatches cannot be fuller, because
  splitting the rows in the order of their lengths needs the fewest microbatches;
- in line: the same without padding, as with `model.packing`;
- padding: computed positions without a token, divided by all computed positions;
- busiest: tokens of the rank with the most tokens, divided by the mean;
- busy: fraction of the time in which a rank computes if all ranks wait for each other in every
  microbatch, as under ZeRO-2 and 3, and time is proportional to computed positions.
"""

import argparse
import csv
from dataclasses import astuple, dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray

from research.tables import print_rows
from trainer.algorithm.batching import plan_update_batches
from trainer.rollouts.balance import equal_shares
from trainer.types import RowLayout

DATA = Path(__file__).with_name("data") / "completion_lengths.csv"
RANKS = 4
GROUPS = 32
GROUP_SIZE = 8
MAX_COMPLETION = 4096  # tokens, as the presets of Knights and Knaves
BUDGETS = (5_120, 16_384)  # tokens per microbatch: kk_3b's, and the default

Lengths = NDArray[np.int64]  # prompt and completion of some rows, [..., 2]


def lengths_by_model() -> dict[str, Lengths]:
    """Return each model's lengths, [problems, 2], in the order of the completion's length."""
    rows: dict[str, list[tuple[int, int]]] = {}
    with DATA.open() as file:
        for row in csv.DictReader(file):
            completion = min(int(row["completion_tokens"]), MAX_COMPLETION)
            rows.setdefault(row["model"], []).append((int(row["prompt_tokens"]), completion))
    return {
        model: np.array(sorted(pairs, key=lambda pair: pair[1])) for model, pairs in rows.items()
    }


def draw(lengths: Lengths, alike: bool, random: np.random.Generator) -> Lengths:
    """Return the lengths of an update batch, [GROUPS, GROUP_SIZE, 2]."""
    if alike:
        first = random.integers(len(lengths) - GROUP_SIZE + 1, size=(GROUPS, 1))
        places = first + np.arange(GROUP_SIZE)
    else:
        places = random.integers(len(lengths), size=(GROUPS, GROUP_SIZE))
    drawn: Lengths = lengths[places]
    return drawn


def microbatches(rows: Lengths, budget: int, layout: RowLayout = "padded") -> list[Lengths]:
    """Return the lengths of the rows of each microbatch of one rank; ``rows`` is [rows, 2]."""
    lengths = torch.from_numpy(rows)
    batch = SimpleNamespace(prompt_lengths=lengths[:, 0], completion_lengths=lengths[:, 1])
    [plan] = plan_update_batches(batch, len(rows), budget, layout=layout)  # type: ignore[arg-type]
    return [rows[part.numpy()].sum(axis=1) for part in plan.microbatches]


@dataclass(frozen=True)
class Fill:
    """The columns for an update batch, as explained above."""

    full: float
    bound: float
    in_line: float
    padding: float
    busiest: float
    busy: float


def measure(rows: Lengths, balanced: bool, budget: int) -> Fill:
    """Return how an update batch fills the ranks' microbatches."""
    by_group = rows.sum(axis=(1, 2))
    shares = [list(range(rank, GROUPS, RANKS)) for rank in range(RANKS)]
    if balanced:
        shares = equal_shares(by_group.tolist(), RANKS)
    of_ranks = [rows[share].reshape(-1, 2) for share in shares]
    padded = [microbatches(own, budget) for own in of_ranks]
    in_line = [microbatches(own, budget, "line") for own in of_ranks]
    everywhere = microbatches(rows.reshape(-1, 2), budget)

    computed = np.zeros((RANKS, max(len(own) for own in padded)))  # positions by microbatch
    for rank, own in enumerate(padded):
        computed[rank, : len(own)] = [len(lengths) * lengths.max() for lengths in own]
    tokens = by_group.sum()
    busiest = max(by_group[share].sum() for share in shares)
    return Fill(
        full=tokens / (sum(len(own) for own in padded) * budget),
        bound=tokens / (len(everywhere) * budget),
        in_line=tokens / (sum(len(own) for own in in_line) * budget),
        padding=1 - tokens / computed.sum(),
        busiest=busiest / (tokens / RANKS),
        busy=computed.sum() / RANKS / computed.max(axis=0).sum(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100)
    batches = parser.parse_args().batches
    rows = []
    for model, lengths in lengths_by_model().items():
        for alike in (False, True):
            for budget in BUDGETS:
                for balanced in (False, True):
                    random = np.random.default_rng(0)
                    drawn = [draw(lengths, alike, random) for _ in range(batches)]
                    each = [measure(batch, balanced, budget) for batch in drawn]
                    mean = Fill(*np.mean([astuple(fill) for fill in each], axis=0))
                    rows.append(
                        [
                            model,
                            "alike" if alike else "any",
                            f"{budget:,}",
                            "yes" if balanced else "no",
                            f"{mean.full:.1%}",
                            f"{mean.bound:.1%}",
                            f"{mean.in_line:.1%}",
                            f"{mean.padding:.1%}",
                            f"{mean.busiest:.3f}",
                            f"{max(fill.busiest for fill in each):.3f}",
                            f"{mean.busy:.1%}",
                        ]
                    )
    columns = ["model", "groups", "budget", "balanced", "full", "bound", "in line"]
    columns += ["padding", "busiest", "largest", "busy"]
    print_rows(f"{batches} update batches, means; `largest` of busiest", columns, rows)


if __name__ == "__main__":
    main()
