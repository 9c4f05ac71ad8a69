"""Advantages, isolation, losses and log-probabilities on a device against published numbers and the
CPU's.
"""

import copy

import pytest
import torch

from tests.conftest import random_model
from tests.reference_vectors import BUNDLED, TOLERANCE, compare
from trainer.policy.logprobs import LogprobModel
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine


@pytest.mark.parametrize("file", BUNDLED, ids=["published", "peers"])
def test_every_rule_gives_the_recorded_numbers(device, file):
    with torch.device(device):
        outcomes = compare(file)
    assert sum(outcome.compared for outcome in outcomes.values()) >= 5
    assert {
        family: outcome.error for family, outcome in outcomes.items() if outcome.error > TOLERANCE
    } == {}


def scored(model, compute_dtype, device):
    """Log-probabilities, entropies and the gradients of their sum."""
    ids = torch.randint(3, 61, (4, 200), generator=torch.Generator().manual_seed(0)).to(device)
    scorer = LogprobModel(copy.deepcopy(model).to(device), 0.7, 33, compute_dtype)
    lengths = torch.tensor([20, 30, 40, 50], device=device)
    mask = torch.ones(4, 150, device=device)
    scores = scorer(ids, lengths, mask, with_entropy=True)
    scores.logprobs.sum().backward()
    gradients = [parameter.grad.float().cpu() for parameter in scorer.causal_lm.parameters()]
    return (
        scores.logprobs.detach().cpu(),
        scores.entropies.cpu(),
        torch.cat([g.flatten() for g in gradients]),
    )


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_log_probabilities_and_gradients_are_those_of_the_cpu(device, causal_lm, dtype, bound):
    expected = scored(causal_lm, torch.float32, torch.device("cpu"))
    on_device = scored(causal_lm, dtype, device)
    for ours, theirs in zip(on_device[:2], expected[:2], strict=True):
        assert (ours - theirs).abs().mean() < bound
    difference = (on_device[2] - expected[2]).norm() / expected[2].norm()
    assert difference < 2 * bound


def test_the_engine_samples_what_the_cpu_samples(device):
    model = random_model()
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5]]
    seeds = [[1, 2], [3, 4]]
    params = SamplingParams(temperature=1.0, max_new_tokens=24, stop_token_ids=(2,))
    here = TransformersEngine(copy.deepcopy(model).to(device), pad_token_id=0).generate(
        prompts, seeds, params
    )
    there = TransformersEngine(model, pad_token_id=0).generate(prompts, seeds, params)
    tokens = [
        (a.token_ids, b.token_ids)
        for x, y in zip(here, there, strict=True)
        for a, b in zip(x, y, strict=True)
    ]
    assert all(a == b for a, b in tokens)
