import pytest
import torch

from trainer.algorithm.rollout_correction import importance_weights, ratio_bounds
from trainer.config.algorithm import RolloutCorrection


def test_a_completions_mean_ratio_is_capped_and_ignores_padding():
    ratio = torch.tensor([[4.0, 0.25], [2.0, 1.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    old = torch.tensor([[-1.0, -2.0], [-0.5, 0.0]])
    config = RolloutCorrection(cap=1.5, level="geometric_mean", rule="truncate")
    weights = importance_weights(old, old - ratio.log(), mask, [config]).weights
    assert weights.flatten().tolist() == pytest.approx([1.0, 1.0, 1.5, 1.5])


@pytest.mark.parametrize(
    ("rule", "floor", "expected"),
    [("truncate", 0.0, [0.5, 1.0, 1.0]), ("mask", 0.5, [0.0, 1.0, 0.0])],
)
def test_a_ratio_to_the_engine_is_bounded_as_a_whole(rule, floor, expected):
    correction = RolloutCorrection(cap=1.5, floor=floor, rule=rule)
    bounds = ratio_bounds(torch.tensor([3.0, 1.2, 0.25]).log(), [correction])
    assert bounds.tolist() == pytest.approx(expected)


def test_a_token_weight_is_finite_whatever_the_mean_of_its_completion():
    log_ratio = torch.tensor([[100.0, -100.0]])
    config = RolloutCorrection(cap=2.0, level="geometric_mean", rule="mask")
    weights = importance_weights(log_ratio, torch.zeros(1, 2), torch.ones(1, 2), [config]).weights
    assert weights.log().tolist() == [pytest.approx([20.0, -20.0])]


GEO_RS = {"level": "geometric_mean", "rule": "mask", "floor": 0.9, "cap": 1.1}
TOKEN_TIS = {"level": "token", "rule": "truncate", "cap": 1.2}


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_masks_drop_completions_and_one_truncation_weights_the_tokens(order):
    # geometric means 1.0, 1.0 and 2.0
    ratio = torch.tensor([[1.5, 1 / 1.5], [1.0, 1.0], [2.0, 2.0]])
    corrections = [[RolloutCorrection(**GEO_RS), RolloutCorrection(**TOKEN_TIS)][i] for i in order]
    old = torch.full((3, 2), -1.0)
    weights = importance_weights(old, old - ratio.log(), torch.ones(3, 2), corrections).weights
    assert weights.flatten().tolist() == pytest.approx([1.2, 1 / 1.5, 1.0, 1.0, 0.0, 0.0])


def test_two_masks_drop_what_either_drops_and_weight_by_the_token_ratio():
    ratio = torch.tensor([[1.5, 1 / 1.5], [1.0, 1.0], [2.0, 2.0]])
    token = RolloutCorrection(level="token", rule="mask", floor=0.5, cap=1.4)
    old = torch.full((3, 2), -1.0)
    corrections = [RolloutCorrection(**GEO_RS), token]
    weights = importance_weights(old, old - ratio.log(), torch.ones(3, 2), corrections).weights
    assert weights.flatten().tolist() == pytest.approx([0.0, 1 / 1.5, 1.0, 1.0, 0.0, 0.0])


def test_a_dropped_completion_has_weight_0_however_large_its_ratio():
    correction = RolloutCorrection(level="sequence", rule="mask", cap=2.0)
    weights = importance_weights(
        torch.zeros(1, 2), torch.full((1, 2), -100.0), torch.ones(1, 2), [correction]
    ).weights
    assert weights.tolist() == [[0.0, 0.0]]


def test_bounds_of_several_corrections_multiply():
    token = RolloutCorrection(level="token", rule="mask", floor=0.5, cap=4.0)
    ratio = torch.tensor([3.0, 1.0, 0.25, 8.0])
    bounds = ratio_bounds(ratio.log(), [token, RolloutCorrection(cap=1.5)])
    assert bounds.tolist() == pytest.approx([0.5, 1.0, 0.0, 0.0])


def test_only_ratios_beyond_a_bound_are_cut():
    ratio = torch.tensor([[1.0, 1.0], [1.5, 0.5]])
    old = torch.full((2, 2), -1.0)
    engine = old - ratio.log()
    truncate = RolloutCorrection(cap=1.0)
    cut = importance_weights(old, engine, torch.ones(2, 2), [truncate]).is_cut
    assert cut.tolist() == [[False, False], [True, False]]
    mask = RolloutCorrection(rule="mask", floor=0.6, cap=1.0)
    cut = importance_weights(old, engine, torch.ones(2, 2), [mask]).is_cut
    assert cut.tolist() == [[False, False], [True, True]]
