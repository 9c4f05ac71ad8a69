"""What packed rows save, counted: positions and floating-point operations of padded and packed microbatches.

    python -m benchmarks.packed_rows                     # 8 prompts of 297 tokens x 8 completions of 128 to 1,000
    python -m benchmarks.packed_rows --model 7B --tokens 512 4096

Completions have lengths drawn evenly. Padded rows are planned as on a GPU. Attention of padded rows is counted as
a causal kernel computes it, half of every row's square; of packed rows, all pairs that the mask lets see each
other, and what flex attention computes: all pairs of its blocks that are not empty. Operations are those of one
forward pass: 2 a position in each weight of the layers, 4 a pair in each head dimension. A backward pass takes
twice that.
"""

import argparse

import numpy as np
import torch

from benchmarks.gpu_step import MODELS
from benchmarks.microbatches import make_batch, padded_positions
from benchmarks.tables import print_rows
from trainer.algorithm.batching import plan_update_batches, select_rows
from trainer.packing import pack
from trainer.policy.architectures import KNOWN, Architecture
from trainer.policy.flex_attention import BLOCK, block_mask, in_blocks
from trainer.policy.row_cost import GPU_MICROBATCH, RowCost
from trainer.types import TrainBatch

CPU = torch.device("cpu")


def costs_of(model: Architecture) -> tuple[int, int]:
    """Operations of one position in the layers' weights, and of one pair of positions in attention."""
    embeddings = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    return 2 * (model.parameters - embeddings), 4 * model.num_hidden_layers * model.hidden_size


def counted_padded(batch: TrainBatch, budget: int, cost: RowCost) -> tuple[int, int, float]:
    """Microbatches, positions and pairs."""
    plan = plan_update_batches(batch, len(batch.rewards), budget, cost=cost)[0]
    shapes = [select_rows(batch, rows).input_ids.shape for rows in plan.microbatches]
    return len(shapes), padded_positions(batch, plan), sum(rows * length**2 / 2 for rows, length in shapes)


def counted_packed(batch: TrainBatch, budget: int) -> tuple[int, int, float, float]:
    """Microbatches, positions with those that fill blocks, pairs, and pairs of the blocks that are not empty."""
    plan = plan_update_batches(batch, len(batch.rewards), budget, packed=True)[0]
    positions, pairs, in_kernel = 0, 0, 0
    for rows in plan.microbatches:
        part = select_rows(batch, rows)
        packing = pack(part.input_ids, part.prompt_lengths, part.completion_mask)
        pairs += int((packing.position_ids + 1).sum())
        blocks = in_blocks(packing)
        positions += len(blocks.input_ids)
        mask = block_mask(blocks, CPU)
        full = mask.full_kv_num_blocks
        assert full is not None
        in_kernel += int(mask.kv_num_blocks.sum() + full.sum()) * BLOCK**2
    return len(plan.microbatches), positions, pairs, in_kernel


def table(batch: TrainBatch, model: Architecture, budget: int) -> list[list[str]]:
    """A line for padded rows, packed rows, and packed rows in flex attention's blocks."""
    per_position, per_pair = costs_of(model)
    padded = counted_padded(batch, budget, RowCost(per_pair / 2 / per_position, GPU_MICROBATCH))
    count, positions, pairs, in_kernel = counted_packed(batch, budget)
    lines = {"padded": padded, "packed, pairs of the mask": (count, positions, pairs)}
    lines["packed, blocks of flex attention"] = (count, positions, in_kernel)
    whole = padded[1] * per_position + padded[2] * per_pair
    rows = []
    for name, (microbatches, of, seen) in lines.items():
        linear, attention = of * per_position, seen * per_pair
        rows.append(
            [
                name,
                str(microbatches),
                f"{of:,}",
                f"{linear / 1e12:.1f}",
                f"{attention / 1e12:.2f}",
                f"{(linear + attention) / whole:.3f}",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="3B")
    parser.add_argument("--prompts", type=int, default=8, help="with 8 completions each")
    parser.add_argument("--prompt-tokens", type=int, default=297)
    parser.add_argument(
        "--tokens", type=int, nargs=2, default=(128, 1000), help="of a completion: fewest and most"
    )
    parser.add_argument("--budget", type=int, default=16384, help="optim.tokens_per_microbatch")
    arguments = parser.parse_args()
    fewest, most = arguments.tokens
    lengths = np.random.default_rng(0).integers(fewest, most, (arguments.prompts, 8), endpoint=True)
    batch = make_batch(lengths, arguments.prompt_tokens)
    tokens = (
        f"{arguments.prompts} x 8 completions of {fewest} to {most} tokens, prompts of {arguments.prompt_tokens}"
    )
    print_rows(
        f"{MODELS[arguments.model]}, {tokens}: {int(batch.completion_mask.sum()):,} tokens, one forward pass",
        ["rows", "microbatches", "positions", "TFLOP in weights", "in attention", "of padded"],
        table(batch, KNOWN[MODELS[arguments.model]], arguments.budget),
    )


if __name__ == "__main__":
    main()
