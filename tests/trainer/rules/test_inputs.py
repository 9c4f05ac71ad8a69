from dataclasses import replace

import torch

from tests.trainer.algorithm.batches import make_batch
from trainer.rules.inputs import LossInputs, UpdateTotals


def test_the_log_ratio_is_bounded_and_has_a_gradient_within_the_bounds_alone():
    batch = make_batch()
    old = torch.zeros_like(batch.completion_mask)
    logprobs = old.clone()
    logprobs[0, :3] = torch.tensor([-0.5, -30.0, 25.0])
    logprobs.requires_grad_()
    inputs = LossInputs.of(replace(batch, old_logprobs=old), logprobs, batch.completion_mask, UpdateTotals(1, 1))
    assert inputs.log_ratio[0, :3].tolist() == [-0.5, -20.0, 20.0]
    inputs.log_ratio.sum().backward()
    assert logprobs.grad[0, :3].tolist() == [1.0, 0.0, 0.0]
