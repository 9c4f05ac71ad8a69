import math

import pytest
import torch

from tests.trainer.algorithm.batches import loss_inputs
from trainer.rules.interface import UpdateTotals
from trainer.rules.kinds import LOSS


def token_losses(name, old, new, advantages, isolated=0):
    """Losses, gradients and clipped tokens of one completion; a probability of 0 is padding with a
    junk ratio.

    The pass has all tokens but the first ``isolated``.
    """
    mask = (torch.tensor([old]) > 0).float()
    token_mask = mask * (torch.arange(len(old)) >= isolated)
    old_logprobs = torch.tensor([old]).log().masked_fill(mask == 0, 0.0)
    logprobs = torch.tensor([new]).log().masked_fill(mask == 0, -3.0).requires_grad_()
    inputs = loss_inputs(
        logprobs,
        old_logprobs,
        torch.tensor([advantages]),
        UpdateTotals(1, 1),
        completion_mask=mask,
        token_mask=token_mask,
    )
    computed = LOSS.read(name)(inputs)
    (computed.losses * mask).sum().backward()
    kept = mask.bool()
    return (
        computed.losses[kept].tolist(),
        logprobs.grad[kept].tolist(),
        (kept * computed.clipped)[kept].tolist(),
    )


@pytest.mark.parametrize("isolated", [0, 1])
def test_gspo_has_one_ratio_for_the_completion_in_every_pass(isolated):
    # Token ratios 1.2 and 0.9: their geometric mean sqrt(1.08) is above 1.0004. Padding does not
    # count.
    mean = math.sqrt(1.08)
    losses, gradients, clipped = token_losses(
        "gspo", [0.5, 0.5, 0.0], [0.6, 0.45, 0.0], [2.0, 2.0, 0.0], isolated
    )
    assert losses == pytest.approx([-2.0008, -2.0008])
    assert (gradients, clipped) == ([0.0, 0.0], [True, True])
    losses, gradients, clipped = token_losses(
        "gspo", [0.5, 0.5, 0.0], [0.6, 0.45, 0.0], [-2.0, -1.0, 0.0], isolated
    )
    assert losses == pytest.approx([2 * mean, mean])
    assert gradients == pytest.approx([2 * mean, mean])  # of each token by itself
    assert clipped == [False, False]


@pytest.mark.parametrize(
    ("loss", "old", "new", "advantages", "clipped"),
    [
        ("cispo", [0.05, 0.8], [0.5, 0.08], [2.0, 2.0], [True, False]),  # ratios of 10 and 0.1
        # Moved by 0.3 with the advantage, by 0.15, by 0.3 against it, and tenfold by 0.09 only.
        (
            "dppo_tv",
            [0.5, 0.5, 0.5, 0.01],
            [0.8, 0.65, 0.8, 0.1],
            [1.0, 1.0, -1.0, 1.0],
            [True] + [False] * 3,
        ),
        ("sapo", [0.4, 0.4], [0.4, 0.8], [1.0, 1.0], [False, False]),
    ],
)
def test_tokens_that_a_loss_holds_back_are_marked(loss, old, new, advantages, clipped):
    assert token_losses(loss, old, new, advantages)[2] == clipped


def test_lp_reg_pulls_chosen_tokens_up_to_the_proxy_and_no_further():
    # Chosen below the proxy, chosen above it, not chosen; all at ratio 1 with A = -1.
    old = torch.full((1, 3), -4.0)
    logprobs = old.clone().requires_grad_()
    inputs = loss_inputs(
        logprobs,
        old,
        -torch.ones(1, 3),
        UpdateTotals(1, 1),
        chosen=torch.tensor([[True, True, False]]),
        token_statistics=torch.tensor([[-3.5, -5.0, -3.5]]),
    )
    losses = LOSS.read({"name": "lp_reg", "coef": 2.0})(inputs).losses
    losses.sum().backward()
    k3 = math.exp(0.5) - 0.5 - 1
    assert losses[0].tolist() == pytest.approx([1 + 2 * k3, 1, 1])
    assert logprobs.grad[0].tolist() == pytest.approx([1 + 2 * (1 - math.exp(0.5)), 1, 1])


def test_rgra_has_neither_ratio_nor_clip():
    losses, gradients, clipped = token_losses("rgra", [0.5, 0.05], [0.05, 0.5], [2.0, -1.0])
    assert gradients == [-2.0, 1.0]
    assert losses == pytest.approx([-2 * math.log(0.05), math.log(0.5)])
    assert clipped == [False, False]


def test_vespo_weighs_by_the_completions_ratio_and_the_sign():
    old = torch.full((2, 2), -1.0)
    new = old + torch.tensor([[0.2, -0.5], [0.2, -0.5]])
    w = math.exp(-0.3)
    phi = [math.exp(3) * w**2 * math.exp(-3 * w), math.exp(2) * w**3 * math.exp(-2 * w)]
    inputs = loss_inputs(new, old, torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), UpdateTotals(4, 2))
    losses = LOSS.read("vespo")(inputs).losses
    expected = torch.tensor([[-phi[0]], [phi[1]]]) * new
    torch.testing.assert_close(losses, expected)
