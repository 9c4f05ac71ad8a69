import pytest
import torch

from trainer.algorithm.engine_correction import importance_weights, ratio_bounds
from trainer.config.algorithm import EngineCorrection


def test_the_mean_ratio_of_a_completion_is_capped_and_does_not_depend_on_its_padding():
    ratio = torch.tensor([[4.0, 0.25], [2.0, 1.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    old = torch.tensor([[-1.0, -2.0], [-0.5, 0.0]])
    config = EngineCorrection(cap=1.5, level="geometric_mean", rule="truncate")
    weights = importance_weights(old, old - ratio.log(), mask, config)
    assert weights.flatten().tolist() == pytest.approx([1.0, 1.0, 1.5, 1.5])


@pytest.mark.parametrize(
    ("rule", "floor", "expected"),
    [("truncate", 0.0, [0.5, 1.0, 1.0]), ("mask", 0.5, [0.0, 1.0, 0.0])],
)
def test_a_ratio_to_the_engine_is_bounded_as_a_whole(rule, floor, expected):
    bounds = ratio_bounds(
        torch.tensor([3.0, 1.2, 0.25]).log(), EngineCorrection(cap=1.5, floor=floor, rule=rule)
    )
    assert bounds.tolist() == pytest.approx(expected)


def test_a_token_weight_is_finite_whatever_the_mean_of_its_completion():
    log_ratio = torch.tensor([[100.0, -100.0]])
    config = EngineCorrection(cap=2.0, level="geometric_mean", rule="mask")
    weights = importance_weights(log_ratio, torch.zeros(1, 2), torch.ones(1, 2), config)
    assert weights.log().tolist() == [pytest.approx([20.0, -20.0])]
