import math

import pytest
import torch

from trainer.algorithm.reweighting import reweighted


def test_weight_is_alpha_times_probability_plus_the_rest():
    advantages = torch.tensor([[2.0, -2.0, 2.0]])
    old_logprobs = torch.tensor([[math.log(0.5), math.log(0.1), 0.0]])
    result = reweighted(advantages, old_logprobs, alpha=0.3)
    assert result.tolist() == [pytest.approx([2 * 0.85, -2 * 0.73, 2 * 1.0])]


def test_alpha_zero_returns_the_advantages_unchanged():
    advantages = torch.tensor([[0.1, -0.7]])
    assert torch.equal(reweighted(advantages, torch.tensor([[-3.0, -0.1]]), alpha=0.0), advantages)
