"""Rows of mixed lengths in microbatches: cut where the budget is full, or where the whole costs least.

    python -m benchmarks.microbatches                         # 64 rows, a 3.2M-parameter Qwen2, padded rows
    python -m benchmarks.microbatches --spread 0.2 --budget 4096

Lengths are log-normal. Prints microbatches, padded positions, and processor seconds of forward and backward, the
plans in turns. Measured on a Xeon with AVX-512, one thread, on a busy machine: 24,415 positions in 2 microbatches
take 7.39 s, 16,827 in 14 take 4.85 s (medians of three rounds, 7.38 to 7.52 and 4.84 to 5.06).
"""

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from benchmarks.models import small_qwen2
from benchmarks.tables import print_rows
from trainer.algorithm.batching import UpdateBatch, build_batch, plan_update_batches, select_rows
from trainer.policy.logprobs import LogprobModel
from trainer.policy.row_cost import row_cost
from trainer.types import Completion, Problem, Rollout, RolloutGroup, TrainBatch

PROMPT = 64
AS_FEW_AS_POSSIBLE = 1e12  # tokens that another microbatch would have to save


def make_batch(lengths: np.ndarray, prompt_tokens: int = PROMPT) -> TrainBatch:
    """Completions of given lengths [groups, rows], of any tokens, each group behind a prompt of its own."""
    problem = Problem("", "", "", "", "")
    groups = [
        RolloutGroup(
            number,
            [
                Rollout(
                    number,
                    problem,
                    (number, *range(1, prompt_tokens)),
                    Completion((1,) * size, (-1.0,) * size, "", "stop"),
                    0.0,
                    {},
                    False,
                )
                for size in row
            ],
        )
        for number, row in enumerate(np.maximum(1, lengths).astype(int).tolist())
    ]
    return build_batch(groups, 0, torch.device("cpu"))


def seconds_of(model: LogprobModel, batch: TrainBatch, plan: UpdateBatch) -> float:
    """Processor seconds of forward and backward of all microbatches."""
    started = time.process_time()
    for rows in plan.microbatches:
        part = select_rows(batch, rows)
        model(part.input_ids, part.prompt_lengths, part.completion_mask).logprobs.sum().backward()
    model.zero_grad()
    return time.process_time() - started


def padded_positions(batch: TrainBatch, plan: UpdateBatch) -> int:
    """Rows x longest sequence, added over the microbatches."""
    return sum(select_rows(batch, rows).input_ids.numel() for rows in plan.microbatches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=8, help="of 8 rows")
    parser.add_argument("--tokens", type=float, default=150.0, help="median of a completion's")
    parser.add_argument("--spread", type=float, default=0.7, help="standard deviation of their logarithm")
    parser.add_argument("--budget", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lengths = np.random.default_rng(0).lognormal(np.log(arguments.tokens), arguments.spread, (arguments.groups, 8))
    batch = make_batch(lengths)
    config = small_qwen2(tie_word_embeddings=True, max_position_embeddings=8192)
    lm = Qwen2ForCausalLM._from_config(config, attn_implementation="sdpa")
    model, cost = LogprobModel(lm, 1.0, 1024), row_cost(lm)
    plans = {
        name: plan_update_batches(batch, len(batch.rewards), arguments.budget, cost=chosen)[0]
        for name, chosen in (("full", replace(cost, microbatch=AS_FEW_AS_POSSIBLE)), ("cheapest", cost))
    }
    for plan in plans.values():
        seconds_of(model, batch, plan)
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(arguments.rounds):
        for name, plan in plans.items():
            seconds[name].append(seconds_of(model, batch, plan))
    tokens = int((batch.prompt_lengths + batch.completion_lengths).sum())
    rows = [
        [
            name,
            str(len(plan.microbatches)),
            f"{padded_positions(batch, plan):,}",
            f"{padded_positions(batch, plan) / tokens - 1:.0%}",
            f"{statistics.median(seconds[name]):.2f}",
            ", ".join(f"{value:.2f}" for value in seconds[name]),
        ]
        for name, plan in plans.items()
    ]
    title = f"{len(batch.rewards)} rows, {tokens:,} tokens, budget {arguments.budget:,}"
    print_rows(title, ["cut", "microbatches", "positions", "padding", "CPU s", "rounds"], rows)


if __name__ == "__main__":
    main()
