import pytest
import torch

from tests.trainer.algorithm.batches import batch_of, loss_inputs
from trainer.algorithm.entropy_bonus import EntropyBonus
from trainer.algorithm.loss import update_loss
from trainer.algorithm.loss_inputs import UpdateTotals
from trainer.config.algorithm import AlgorithmConfig


def coefficients(entropies: list[float], **settings: float) -> list[float]:
    bonus = EntropyBonus.of(AlgorithmConfig(**settings))
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    return [bonus.next(batch_of(mask, entropies=mask * entropy), lambda tensor: tensor) for entropy in entropies]


def test_a_constant_bonus_stays_and_an_adaptive_one_counts_below_the_target():
    assert coefficients([0.1, 0.9], entropy_coef=0.3) == [0.3, 0.3]
    # Rises three times, falls twice without effect, and is back at its third value.
    found = coefficients([0.1, 0.15, 0.1, 0.9, 0.9, 0.1], entropy_target=0.2)
    assert found == pytest.approx([0.0, 0.005, 0.010, 0.0, 0.0, 0.005])
    assert coefficients([0.9] * 3 + [0.1], entropy_target=0.2, entropy_coef=0.005)[-1] == 0.0  # never below 0


def test_the_bonus_is_weighted_as_the_loss_is_and_counts_the_tokens_of_the_pass():
    entropies = torch.tensor([[2.0, 3.0]], requires_grad=True)
    zeros = torch.zeros(1, 2)
    inputs = loss_inputs(
        zeros, zeros, zeros, UpdateTotals(2, 1), entropies=entropies, token_mask=torch.tensor([[1.0, 0.0]])
    )
    output = update_loss(inputs, AlgorithmConfig(kl_coef=0.0, entropy_coef=0.1))
    output.loss.backward()
    assert output.loss.item() == pytest.approx(-0.1 * 2.0 / 2)
    assert entropies.grad.tolist() == [[pytest.approx(-0.05), 0.0]]
