import pytest
import torch

from trainer.algorithm.reweighting import reweight


@pytest.mark.parametrize(
    ("alpha", "factors"), [(0.0, [1.0, 1.0, 1.0]), (0.3, [0.73, 0.85, 1.0]), (1.0, [0.1, 0.5, 1.0])]
)
def test_ar_damps_low_probability_tokens_by_equation_4(alpha, factors):
    probabilities = torch.tensor([[0.1, 0.5, 1.0]])
    advantages = torch.tensor([[2.0, -2.0, 1.0]])
    damped = reweight(advantages, probabilities.log(), alpha)
    torch.testing.assert_close(damped, torch.tensor([factors]) * advantages)
