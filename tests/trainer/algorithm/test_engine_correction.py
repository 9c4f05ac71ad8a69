import pytest
import torch

from trainer.algorithm.engine_correction import importance_weights, ratio_bounds
from trainer.config.algorithm import AlgorithmConfig


def test_sequence_level_importance_sampling_drops_completions_above_the_cap():
    # Ratios per token: 2 and 0.5 (product 1), 2 and 1.5 (3, above the cap), 0.5 and padding (0.5).
    log_ratio = torch.tensor([[2.0, 0.5], [2.0, 1.5], [0.5, 1.0]]).log()
    old = torch.tensor([[-1.0, -2.0], [-0.5, -0.1], [-3.0, 0.0]])
    config = AlgorithmConfig(importance_sampling_cap=2.0, importance_sampling_level="sequence")
    weights = importance_weights(old, old - log_ratio, torch.ones(3, 2), config)
    assert weights is not None
    assert weights.flatten().tolist() == pytest.approx([1, 1, 0, 0, 0.5, 0.5])


def test_importance_sampling_off_has_no_weights():
    assert importance_weights(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1), AlgorithmConfig()) is None


@pytest.mark.parametrize(
    ("level", "rule", "floor", "expected"),
    [
        # Ratios 4 and 0.25 (product and mean 1), 2 and 0.5, cut after one token (product and mean 2).
        ("token", "truncate", 0.0, [1.5, 0.25, 1.5, 1.0]),
        ("token", "mask", 0.5, [0.0, 0.0, 0.0, 1.0]),
        ("sequence", "truncate", 0.0, [1.0, 1.0, 1.5, 1.5]),
        ("sequence", "mask", 0.5, [1.0, 1.0, 0.0, 0.0]),
        ("geometric_mean", "truncate", 0.0, [1.0, 1.0, 1.5, 1.5]),
        ("geometric_mean", "mask", 0.5, [4.0, 0.25, 0.0, 0.0]),
    ],
)
def test_levels_and_rules_by_hand(level, rule, floor, expected):
    ratio, mask = torch.tensor([[4.0, 0.25], [2.0, 1.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    old = torch.tensor([[-1.0, -2.0], [-0.5, 0.0]])
    config = AlgorithmConfig(
        importance_sampling_cap=1.5,
        importance_sampling_floor=floor,
        importance_sampling_level=level,
        importance_sampling_rule=rule,
    )
    weights = importance_weights(old, old - ratio.log(), mask, config)
    assert weights.flatten().tolist() == pytest.approx(expected)


def test_the_mean_ratio_of_a_completion_does_not_depend_on_its_padding():
    config = AlgorithmConfig(importance_sampling_cap=100.0, importance_sampling_level="geometric_mean")
    ratio, mask = torch.tensor([[3.0, 1.0, 1.0, 1.0]]), torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    old = torch.tensor([[-1.0, 0.0, 0.0, 0.0]])
    assert importance_weights(old, old - ratio.log(), mask, config)[0, 0].item() == pytest.approx(3.0)
    tight = config.model_copy(update={"importance_sampling_cap": 2.9})
    assert importance_weights(old, old - ratio.log(), mask, tight)[0, 0].item() == 0.0  # 3 ** (1 / 4) would pass


@pytest.mark.parametrize(
    ("rule", "floor", "expected"), [("truncate", 0.0, [0.5, 1.0, 1.0]), ("mask", 0.5, [0.0, 1.0, 0.0])]
)
def test_a_ratio_to_the_engine_is_bounded_as_a_whole(rule, floor, expected):
    config = AlgorithmConfig(
        importance_sampling_cap=1.5, importance_sampling_floor=floor, importance_sampling_rule=rule
    )
    bounds = ratio_bounds(torch.tensor([3.0, 1.2, 0.25]).log(), config)
    assert bounds.tolist() == pytest.approx(expected)
    assert ratio_bounds(torch.zeros(3), AlgorithmConfig()) is None
