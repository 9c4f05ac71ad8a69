import math

import pytest
import torch

from trainer.algorithm.kl import kl_penalty
from trainer.config.algorithm import AlgorithmConfig


@pytest.mark.parametrize(
    ("log_ratio_clamp", "far_below", "far_above"),
    [
        (5.0, 10.0, math.exp(-5) + 4),  # the published code of AR and Lopti
        (20.0, 10.0, 10.0),
    ],
)
def test_k3_is_bounded(log_ratio_clamp, far_below, far_above):
    config = AlgorithmConfig(kl_log_ratio_clamp=log_ratio_clamp)
    assert kl_penalty(torch.tensor([-20.0]), torch.tensor([0.0]), config).item() == far_below
    assert kl_penalty(torch.tensor([0.0]), torch.tensor([-20.0]), config).item() == pytest.approx(
        far_above
    )
