"""How full microbatches are, and how evenly ranks are loaded, with lengths of real completions.

    python -m research.microbatch_fill

Update batches of 32 groups of 8 on four ranks, planned by the trainer's own code. Lengths are drawn
from ``research/data/completion_lengths.csv``, where each model has one completion per problem. A
group is eight completions of any problems, or of problems whose completions are next to each other
in length: the groups of a real run are between both. Columns:

- full: tokens by the number of microbatches times their budget;
- padding: positions that are computed without a token, of all computed;
- busiest: tokens of the rank with the most, by the mean;
- busy: time that a rank computes if all ranks wait for each other in every microbatch, as under
  ZeRO-2 and 3, with time proportional to computed positions.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray

from research.tables import print_rows
from trainer.algorithm.batching import UpdateBatch, plan_update_batches
from trainer.rollouts.balance import equal_shares

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


def plans(rows: Lengths, shares: Sequence[Sequence[int]], budget: int) -> list[UpdateBatch]:
    """Return each rank's plan of the update batch."""
    found = []
    for share in shares:
        own = torch.from_numpy(rows[list(share)].reshape(-1, 2))
        batch = SimpleNamespace(prompt_lengths=own[:, 0], completion_lengths=own[:, 1])
        [plan] = plan_update_batches(batch, len(own), budget)  # type: ignore[arg-type]
        found.append(plan)
    return found


def measure(rows: Lengths, balanced: bool, budget: int) -> tuple[float, float, float, float]:
    """Return the columns full, padding, busiest and busy."""
    tokens = rows.sum(axis=(1, 2))
    shares = [list(range(rank, GROUPS, RANKS)) for rank in range(RANKS)]
    if balanced:
        shares = equal_shares(tokens.tolist(), RANKS)
    computed = []  # of each rank, by microbatch
    for share, plan in zip(shares, plans(rows, shares, budget), strict=True):
        lengths = rows[share].reshape(-1, 2).sum(axis=1)
        computed.append([len(part) * int(lengths[part].max()) for part in plan.microbatches])
    width = max(len(of_rank) for of_rank in computed)
    padded = np.array([of_rank + [0] * (width - len(of_rank)) for of_rank in computed])
    by_rank = [tokens[share].sum() for share in shares]
    return (
        tokens.sum() / (np.count_nonzero(padded) * budget),
        1 - tokens.sum() / padded.sum(),
        max(by_rank) / np.mean(by_rank),
        padded.sum() / RANKS / padded.max(axis=0).sum(),
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
                    each = np.array([measure(batch, balanced, budget) for batch in drawn])
                    full, padding, busiest, busy = each.mean(axis=0)
                    rows.append(
                        [
                            model,
                            "alike" if alike else "any",
                            f"{budget:,}",
                            "yes" if balanced else "no",
                            f"{full:.1%}",
                            f"{padding:.1%}",
                            f"{busiest:.3f}",
                            f"{each[:, 2].max():.3f}",
                            f"{busy:.1%}",
                        ]
                    )
    columns = ["model", "groups", "budget", "balanced", "full", "padding"]
    columns += ["busiest", "largest", "busy"]
    print_rows(f"{batches} update batches, means; `largest` of busiest", columns, rows)


if __name__ == "__main__":
    main()
