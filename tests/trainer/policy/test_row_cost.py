import pytest

from tests.conftest import random_model
from trainer.policy.row_cost import RowCost, row_cost


def test_a_models_cost_by_hand():
    # A layer of width 32: query, output 32 x 32, key, value 32 x 16 (2 of 4 heads), gate, up, down 32 x 48.
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    other = 2 * 2 * 32 + 2 * (32 + 16 + 16) + 32  # norms and biases of two layers, the last norm
    cost = row_cost(random_model("qwen2"))
    # Two layers of 4 heads x 8: n^2 pairs take 2 * 2 * 32 operations, a position 2 in each weight.
    assert cost.attention == pytest.approx(2 * 2 * 32 / (2 * (2 * layer + other)))


def test_a_row_costs_more_than_its_share_of_positions():
    cost = RowCost(attention=0.01)
    assert cost.of_row(100) == 200
    assert cost.of_row(200) == 600
