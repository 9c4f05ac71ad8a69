"""What must hold for every update rule."""

import copy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import random_model
from tests.invariants.ranks import run_ranks
from tests.invariants.rules import ADVANTAGES, LOSSES, RULES, algorithm, rewards_of
from tests.invariants.rules_job import run_rule
from tests.trainer.algorithm.batches import make_groups
from trainer.algorithm.advantages import ADVANTAGE_ESTIMATORS, estimate_advantages
from trainer.algorithm.batching import build_batch, plan_update_batches
from trainer.algorithm.isolation import isolation_passes
from trainer.algorithm.loss import update_loss
from trainer.algorithm.loss_inputs import LossInputs, UpdateTotals
from trainer.algorithm.policy_losses import POLICY_LOSSES
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.scoring import attach_logprobs
from trainer.algorithm.token_filters import TOKEN_FILTERS
from trainer.algorithm.update import Updater, UpdateStatistics
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel

SIZES, PROMPTS = [[5, 9, 3, 12], [7, 1, 4, 8]], [6, 11]


def gradient(rule: dict, tokens_per_microbatch: int, rewards: tuple[float, float], **settings) -> torch.Tensor:
    """The gradient of one update batch, all passes added, far enough off policy that ratios differ from 1."""
    config = algorithm(rule, **settings)
    model = LogprobModel(random_model(), temperature=0.9, chunk_tokens=16)
    reference = copy.deepcopy(model)
    batch = build_batch(make_groups(SIZES, PROMPTS, rewards=rewards), 0, torch.device("cpu"))
    plan = plan_update_batches(batch, 8, tokens_per_microbatch)
    batch = attach_logprobs(batch, model, reference, plan)
    generator = torch.Generator().manual_seed(1)

    def disturbed(logprobs: torch.Tensor, size: float) -> torch.Tensor:
        noise = size * torch.randn(logprobs.shape, generator=generator)
        return (logprobs + noise).clamp(max=-1e-3) * batch.completion_mask

    batch = replace(batch, old_logprobs=disturbed(batch.old_logprobs, 0.3))
    batch = replace(batch, rollout_logprobs=disturbed(batch.old_logprobs, 0.5))
    batch = reweight_advantages(estimate_advantages(batch, config), config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = torch.cat([p.detach().flatten().double() for p in model.parameters()])
    updater = Updater(model, optimizer, config, 1e9, Parallel(), 16)
    for mask in isolation_passes(batch, config):
        updater.run_pass(batch, mask, plan, UpdateStatistics.of(batch), step=1)
    return before - torch.cat([p.detach().flatten().double() for p in model.parameters()])


def test_the_suite_has_every_registered_rule():
    assert set(ADVANTAGE_ESTIMATORS) == set(ADVANTAGES)
    assert set(POLICY_LOSSES) == set(LOSSES)
    assert set(TOKEN_FILTERS) == {"none", "drop_high", "drop_low", "high_entropy"}


@pytest.mark.parametrize("name", RULES)
def test_accumulation_is_one_batch(name):
    rule, rewards = RULES[name], rewards_of(RULES[name])
    whole, cut = (gradient(rule, tokens, rewards, ar_alpha=0.3) for tokens in (10_000, 20))
    assert whole.norm() > 1e-3
    assert float((whole - cut).norm() / whole.norm()) < 1e-5


@pytest.mark.parametrize("name", RULES)
def test_alpha_and_eta_zero_are_the_rule_alone(name):
    rule, rewards = RULES[name], rewards_of(RULES[name])
    alone = gradient(rule, 10_000, rewards)
    assert torch.equal(gradient(rule, 10_000, rewards, ar_alpha=0.0, lopti_eta=0.0), alone)
    assert not torch.equal(gradient(rule, 10_000, rewards, ar_alpha=0.3), alone)
    assert not torch.equal(gradient(rule, 10_000, rewards, lopti_eta=0.02), alone)


@pytest.mark.parametrize("name", RULES)
def test_equal_rewards_update_nothing(name):
    if "kl_coef" in RULES[name]:
        moved = gradient({**RULES[name], "kl_coef": 0.0}, 10_000, (0.7, 0.7))
    else:
        moved = gradient(RULES[name], 10_000, (0.7, 0.7))
    assert float(moved.abs().max()) == 0.0


@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("name", RULES)
def test_gradients_are_finite_at_extreme_ratios(name, advantage, log_ratio):
    old = torch.tensor([[-101.0, -0.5]]) if log_ratio > 0 else torch.tensor([[-1.0, -0.5]])
    new = (old + torch.tensor([[log_ratio, 0.0]])).requires_grad_()
    ones = torch.ones(1, 2)
    inputs = LossInputs(new, old, old, new.detach(), advantage * ones, ones, ones, UpdateTotals(2, 1, 16))
    output = update_loss(inputs, algorithm(RULES[name]))
    output.loss.backward()
    assert torch.isfinite(output.loss)
    assert torch.isfinite(new.grad).all()


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    """The folder with the weights after one step of every rule on two ranks, and what rank 0 reports of it."""
    folder = tmp_path_factory.mktemp("rules")
    random_model().save_pretrained(folder / "model")
    results = run_ranks("tests.invariants.rules_job", 2, {"model": str(folder / "model")}, folder)
    return folder, results[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_two_ranks_are_one(on_two_ranks, name, tmp_path):
    folder, results = on_two_ranks
    alone = run_rule(name, folder / "model", tmp_path, "none")
    assert results[name]["updates"] == alone["updates"]
    for key in ("loss", "grad_norm", "advantage_squares"):
        assert results[name][key] == pytest.approx(alone[key], rel=1e-5, abs=1e-9)
    one, two = (load_file(path / f"{name}.safetensors") for path in (tmp_path, folder))
    # Adam moves by about 1e-3; where a gradient is near 0, its step is the sign of rounding.
    assert max(float((one[key] - two[key]).abs().max()) for key in one) < 2e-5
