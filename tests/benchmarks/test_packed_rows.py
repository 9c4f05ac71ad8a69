import numpy as np
import pytest

from benchmarks.microbatches import make_batch
from benchmarks.packed_rows import costs_of, counted_packed, counted_padded
from trainer.policy.architectures import KNOWN
from trainer.policy.row_cost import RowCost


def test_positions_and_pairs_of_two_short_rows():
    batch = make_batch(np.array([[3, 2]]), 4)
    assert counted_padded(batch, 100, RowCost()) == (1, 2 * 7, 2 * 49 / 2)
    # The prompt's 10 pairs, then 2 and 1 positions behind 4; the first of two blocks does not see the other.
    assert counted_packed(batch, 100) == (1, 256, 10 + (5 + 6) + 5, 3 * 128**2)
    assert counted_packed(batch, 7) == (2, 512, 10 + (5 + 6) + 10 + 5, 2 * 3 * 128**2)


def test_operations_of_a_model():
    per_position, per_pair = costs_of(KNOWN["Qwen/Qwen2.5-7B"])
    assert per_position == pytest.approx(2 * 6.53e9, rel=0.01)  # published: 6.53 billion without embeddings
    assert per_pair == 4 * 28 * 3584
