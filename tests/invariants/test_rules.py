"""What must hold for every update rule."""

import copy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import random_model
from tests.invariants.ranks import run_ranks
from tests.invariants.rules import RULES, algorithm
from tests.invariants.rules_job import run_rule
from tests.invariants.update_job import RANKS_TERMS, update_config
from tests.rounding import adamw_tolerance, gradient_terms, sum_tolerance
from tests.trainer.algorithm.batches import loss_inputs, make_groups
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import build_batch, plan_update_batches
from trainer.algorithm.loss import update_loss
from trainer.algorithm.passes import isolation_passes, select_loss_tokens, select_tokens
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.scoring import attach_logprobs, score_batch
from trainer.algorithm.update import Updater, UpdateStatistics
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel
from trainer.rules.interface import LossInputs, UpdateTotals

REWARDS = (3.0, -1.0)
SIZES = [[5, 9, 3, 12], [7, 1, 4, 8]]
PROMPTS = [6, 11]


# Of sums over the tokens of the batch, once for each pass.
TOLERANCE = 2 * sum_tolerance(
    gradient_terms(random_model().config, max(PROMPTS) + 12, sum(map(sum, SIZES)))
)


def scored(config, rewards):
    """A policy and a batch with advantages, far enough off policy that ratios differ from 1."""
    model = LogprobModel(
        random_model(),
        temperature=0.9,
        chunk_tokens=16,
        token_statistic=config.loss.token_statistic,
    )
    batch = build_batch(make_groups(SIZES, PROMPTS, rewards=rewards), 0, torch.device("cpu"))
    reference = copy.deepcopy(model)
    for parameter in reference.parameters():
        parameter.data += 0.01
    batch = attach_logprobs(batch, model, reference, plan_update_batches(batch, 8, 10_000))
    generator = torch.Generator().manual_seed(1)

    def disturbed(logprobs, size):
        noise = size * torch.randn(logprobs.shape, generator=generator)
        return (logprobs + noise).clamp(max=-1e-3) * batch.completion_mask

    batch = replace(batch, old_logprobs=disturbed(batch.old_logprobs, 0.3))
    batch = replace(batch, rollout_logprobs=disturbed(batch.old_logprobs, 0.5))
    batch = replace(batch, step=1, total_steps=2, loss_state=config.loss.initial_state())
    return model, select_loss_tokens(estimate_advantages(batch, config), config)


def weights(model):
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


def gradient(rule, tokens_per_microbatch, rewards, **settings):
    """The gradient of one update batch, all passes added."""
    config = algorithm(rule, **settings)
    return moved(*scored(config, rewards), config, tokens_per_microbatch)


def moved(model, batch, config, tokens_per_microbatch=10_000):
    """By what one update batch with advantages moves the weights at a learning rate of 1."""
    batch = reweight_advantages(batch, config)
    before = weights(model)
    updater = Updater(
        model, torch.optim.SGD(model.parameters(), lr=1.0), config, 1e9, Parallel(), 16
    )
    plan = plan_update_batches(batch, 8, tokens_per_microbatch)
    for mask in isolation_passes(batch, config):
        updater.run_pass(batch, mask, plan, UpdateStatistics.of(batch), step=1)
    return before - weights(model)


def gradient_by_hand(rule, rewards, alpha, eta):
    """Like `gradient`, with AR and Lopti written out; with 0 and 0 there is neither."""
    config = algorithm(rule, lopti_eta=eta)
    model, batch = scored(config, rewards)
    before = weights(model)
    tokens = select_tokens(batch, config)
    masks = [tokens]
    if alpha:
        factor = alpha * batch.old_logprobs.exp() + 1 - alpha
        batch = replace(batch, advantages=factor * batch.advantages)
    if eta:
        low = batch.old_logprobs.exp() < eta
        masks = [tokens * low, tokens * ~low]
    totals = UpdateTotals(float(batch.completion_mask.sum()), len(batch.completion_mask), 16)
    for mask in masks:
        inputs = (
            batch.input_ids,
            batch.prompt_lengths,
            batch.completion_mask,
            config.needs_entropies,
        )
        scores = model(*inputs)
        losses = LossInputs.of(batch, scores.logprobs, mask, totals, scores.entropies)
        update_loss(losses, config).loss.backward()
        for parameter in model.parameters():
            parameter.data -= parameter.grad
            parameter.grad = None
    return before - weights(model)


def difference(vector, other):
    return float((vector - other).norm() / other.norm())


@pytest.mark.parametrize("name", RULES)
def test_accumulation_is_one_batch(name):
    rule = RULES[name]
    rewards = REWARDS
    whole, cut = (
        gradient(rule, tokens, rewards, ar_alpha=0.3, lopti_eta=0.02) for tokens in (10_000, 20)
    )
    assert whole.norm() > 1e-3
    assert difference(cut, whole) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "alpha", "eta"),
    [
        *((name, *both) for name in RULES for both in ((0.0, 0.0), (0.3, 0.02))),
        # reweighting and passes do not know the rule
        *(("grpo", *alone) for alone in ((0.3, 0.0), (0.0, 0.02))),
    ],
)
def test_alpha_and_eta_follow_their_equations_and_are_off_at_zero(name, alpha, eta):
    rule = RULES[name]
    rewards = REWARDS
    computed = gradient(rule, 10_000, rewards, ar_alpha=alpha, lopti_eta=eta)
    assert difference(computed, gradient_by_hand(rule, rewards, alpha, eta)) < TOLERANCE
    if alpha or eta:
        assert difference(computed, gradient_by_hand(rule, rewards, 0.0, 0.0)) > 1e-3


@pytest.mark.parametrize("name", ["grpo", "gspo", "reinforce_plus_plus"])
def test_with_an_exact_engine_the_gradient_is_that_of_recomputed_logprobs(name):
    config = algorithm(RULES[name], ar_alpha=0.3, lopti_eta=0.02)
    gradients = []
    for recompute in (True, False):
        model = LogprobModel(random_model(), temperature=0.9, chunk_tokens=16)
        batch = build_batch(make_groups(SIZES, PROMPTS), 0, torch.device("cpu"))
        plan = plan_update_batches(batch, 8, 10_000)
        batch = replace(
            batch, rollout_logprobs=score_batch(model, batch, plan, with_entropy=False).logprobs
        )
        batch = attach_logprobs(batch, model if recompute else None, None, plan)
        gradients.append(moved(model, estimate_advantages(batch, config), config))
    assert gradients[0].norm() > 1e-3
    assert difference(gradients[1], gradients[0]) < TOLERANCE


@pytest.mark.parametrize("name", RULES)
def test_equal_rewards_update_nothing(name):
    penalties = {"kl_coef", "log_ratio_coef", "entropy_coef"} & set(RULES[name])
    moved = gradient({**RULES[name], **dict.fromkeys(penalties, 0.0)}, 10_000, (0.7, 0.7))
    assert float(moved.abs().max()) == 0.0


@pytest.mark.parametrize(
    "settings", [{}, {"kl_importance_ratio": True}, {"kl_estimator": "k2"}, {"log_ratio_coef": 0.1}]
)
def test_equal_rewards_move_nothing_while_the_policy_is_the_reference(settings):
    config = algorithm({"kl_coef": 0.1, **settings})
    model = LogprobModel(random_model(), temperature=0.9, chunk_tokens=16)
    batch = build_batch(make_groups(SIZES, PROMPTS, rewards=(0.7, 0.7)), 0, torch.device("cpu"))
    # other microbatches than those of the update: log-probabilities differ in their last digits
    plan = plan_update_batches(batch, 8, 20)
    batch = attach_logprobs(batch, model, copy.deepcopy(model), plan)
    assert float(moved(model, estimate_advantages(batch, config), config).abs().max()) == 0.0


@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("name", RULES)
def test_gradients_are_finite_at_extreme_ratios(name, advantage, log_ratio):
    old = torch.tensor([[-101.0, -0.5]]) if log_ratio > 0 else torch.tensor([[-1.0, -0.5]])
    new = (old + torch.tensor([[log_ratio, 0.0]])).requires_grad_()
    ones = torch.ones(1, 2)
    config = algorithm(RULES[name])
    inputs = loss_inputs(
        new,
        old,
        advantage * ones,
        UpdateTotals(2, 1, 16),
        ref_logprobs=old,
        rollout_logprobs=new.detach(),
        entropies=ones,
        old_entropies=ones,
        group_means=0.5 * ones[:, :1],
        state=config.loss.initial_state(),
    )
    output = update_loss(inputs, config)
    output.loss.backward()
    assert torch.isfinite(output.loss)
    assert torch.isfinite(new.grad).all()


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    """The folder with the weights after one step of every rule on two ranks, and what rank 0
    reports of it.
    """
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
    # Losses are means of advantages of about 1.
    assert results[name]["loss"] == pytest.approx(alone["loss"], abs=sum_tolerance(RANKS_TERMS))
    for key in ("grad_norm", "advantage_squares"):
        assert results[name][key] == pytest.approx(
            alone[key], rel=sum_tolerance(RANKS_TERMS), abs=1e-9
        )
    by_one, by_two = (load_file(path / f"{name}.safetensors") for path in (tmp_path, folder))
    optim = update_config(folder / "model", {}).optim
    largest = max(float((by_one[key] - by_two[key]).abs().max()) for key in by_one)
    bound = adamw_tolerance(
        RANKS_TERMS, alone["largest_gradient"], alone["updates"], optim.lr, optim.eps
    )
    print(f"\n{name}: {largest:.1e}, bound {bound:.1e}")
    assert largest < bound < 1e-4
