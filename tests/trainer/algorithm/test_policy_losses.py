import math

import pytest
import torch

from trainer.algorithm.loss import update_loss
from trainer.algorithm.loss_inputs import LossInputs, UpdateTotals
from trainer.algorithm.policy_losses import POLICY_LOSSES
from trainer.config.algorithm import AlgorithmConfig


def loss_of(ratio: float, advantage: float, dual_clip: float = 3.0):
    old = torch.tensor([[-1.0]])
    logprobs = (old + math.log(ratio)).requires_grad_()
    one = torch.ones(1, 1)
    inputs = LossInputs(logprobs, old, None, old, torch.tensor([[advantage]]), one, one, UpdateTotals(1, 1))
    output = update_loss(inputs, AlgorithmConfig(kl_coef=0.0, dual_clip=dual_clip))
    output.loss.backward()
    assert logprobs.grad is not None
    return output.loss.item(), logprobs.grad.item(), {k: float(v) for k, v in output.metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped", "dual_clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0, 0),
        (1.5, 2.0, -2.48, 0.0, 1, 0),  # clipped at 1.24
        (0.5, 2.0, -1.0, -1.0, 0, 0),  # a falling good token is not clipped
        (0.5, -2.0, 1.6, 0.0, 1, 0),  # clipped at 0.8
        (1.5, -2.0, 3.0, 3.0, 0, 0),
        (5.0, -2.0, 6.0, 0.0, 0, 1),  # dual clip at 3 * 2
    ],
)
def test_clipping_by_hand(ratio, advantage, loss, gradient, clipped, dual_clipped):
    value, grad, metrics = loss_of(ratio, advantage)
    assert value == pytest.approx(loss, rel=1e-5)
    assert grad == pytest.approx(gradient, abs=1e-5)
    assert metrics["clipped"] == clipped
    assert metrics["dual_clipped"] == dual_clipped


def token_losses(name: str, old: list[float], new: list[float], advantages: list[float], **settings):
    """Losses, gradients and clipped tokens of one completion; a probability of 0 is padding with a junk ratio."""
    mask = (torch.tensor([old]) > 0).float()
    old_logprobs = torch.tensor([old]).log().masked_fill(mask == 0, 0.0)
    logprobs = torch.tensor([new]).log().masked_fill(mask == 0, -3.0).requires_grad_()
    inputs = LossInputs(
        logprobs, old_logprobs, None, old_logprobs, torch.tensor([advantages]), mask, mask, UpdateTotals(1, 1)
    )
    found = POLICY_LOSSES[name](inputs, AlgorithmConfig(loss=name, **settings))
    (found.losses * mask).sum().backward()
    assert not found.dual_clipped.any()
    kept = mask.bool()
    return found.losses[kept].tolist(), logprobs.grad[kept].tolist(), found.clipped[kept].tolist()


def test_gspo_has_one_ratio_for_the_completion():
    # Token ratios 1.2 and 0.9: their geometric mean sqrt(1.08) is above 1.0004. Padding does not count.
    mean = math.sqrt(1.08)
    losses, gradients, clipped = token_losses("gspo", [0.5, 0.5, 0.0], [0.6, 0.45, 0.0], [2.0, 2.0, 0.0])
    assert losses == pytest.approx([-2.0008, -2.0008])
    assert (gradients, clipped) == ([0.0, 0.0], [True, True])
    losses, gradients, clipped = token_losses("gspo", [0.5, 0.5, 0.0], [0.6, 0.45, 0.0], [-2.0, -1.0, 0.0])
    assert losses == pytest.approx([2 * mean, mean])
    assert gradients == pytest.approx([2 * mean, mean])  # of each token by itself
    assert clipped == [False, False]


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    losses, gradients, clipped = token_losses("cispo", [0.05, 0.8], [0.5, 0.08], [2.0, 2.0])
    assert losses == pytest.approx([-5 * 2 * math.log(0.5), -0.1 * 2 * math.log(0.08)])  # ratios 10 -> 5 and 0.1
    assert gradients == pytest.approx([-10.0, -0.2])
    assert clipped == [True, False]


@pytest.mark.parametrize(
    ("old", "new", "advantage", "gradient"),
    [
        (0.5, 0.8, 1.0, 0.0),  # rose by 0.3 with its advantage
        (0.5, 0.8, -1.0, 1.6),  # rose against it: the ratio weighs
        (0.5, 0.2, -1.0, 0.0),
        (0.01, 0.1, 1.0, -10.0),  # ten times as probable, and yet by 0.09 only
        (0.001, 0.1, 1.0, -20.0),  # the ratio of 100 is cut
    ],
)
def test_dppo_holds_back_by_the_change_of_the_probability(old, new, advantage, gradient):
    _, gradients, clipped = token_losses("dppo_tv", [old], [new], [advantage])
    assert gradients == pytest.approx([gradient])
    assert clipped == [gradient == 0]


@pytest.mark.parametrize(("threshold", "held_back"), [(None, False), (0.0205, False), (0.0203, True)])
def test_dppo_by_the_divergence_of_this_token_or_another(threshold, held_back):
    # 0.5 log(0.5 / 0.6) + 0.5 log(0.5 / 0.4) = 0.02041
    _, _, clipped = token_losses("dppo_kl", [0.5], [0.6], [1.0], dppo_threshold=threshold)
    assert clipped == [held_back]


def test_sapo_has_the_plain_gradient_at_ratio_one_and_fades_from_there():
    losses, gradients, clipped = token_losses("sapo", [0.4, 0.4, 0.4], [0.4, 0.4, 0.8], [1.0, -1.0, 1.0])
    sigmoid = 1 / (1 + math.exp(-1))
    assert losses == pytest.approx([-2.0, 2 / 1.05, -4 * sigmoid])
    assert gradients == pytest.approx([-1.0, 1.0, -4 * sigmoid * (1 - sigmoid) * 2])
    assert not any(clipped)
