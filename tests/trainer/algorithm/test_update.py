import copy
import math
from dataclasses import replace

import pytest
import torch

from loptune.errors import DivergedError
from tests.conftest import random_model
from tests.trainer.algorithm.batches import make_batch
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import plan_update_batches
from trainer.algorithm.loss import update_loss
from trainer.algorithm.passes import isolation_passes
from trainer.algorithm.scoring import attach_logprobs
from trainer.algorithm.update import Updater, UpdateStatistics, learning_rate
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.optim import OptimConfig
from trainer.cpu.packed_rows import use_packed_attention
from trainer.metrics.step import read_metrics, update_metrics
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import CachedForward, LogprobModel
from trainer.rules.interface import LossInputs, UpdateTotals


@pytest.mark.parametrize(
    ("budget", "settings", "saved"),
    [
        (1000, {}, 1),  # of the first update batch, whose optimizer step moves the weights
        (40, {}, 1),  # microbatches of 2 x 18 and 2 x 11 tokens: the graph of one is kept
        (1000, {"entropy_coef": 0.01}, 1),
        (1000, {"lopti_eta": 0.01}, 1),
        (1000, {"lopti_eta": 0.004}, 0),  # the first pass has no token of some rows
    ],
)
def test_a_kept_forward_changes_nothing_but_the_number_of_forwards(budget, settings, saved):
    algorithm = AlgorithmConfig(kl_coef=0.1, **settings)
    results = []
    for cached_forward in (None, CachedForward()):
        model = LogprobModel(random_model(), temperature=0.9, chunk_tokens=16)
        forwards = []
        model.register_forward_hook(lambda *_, forwards=forwards: forwards.append(1))
        batch = make_batch()
        plan = plan_update_batches(batch, 4, budget)
        batch = attach_logprobs(batch, model, copy.deepcopy(model), plan, cached_forward)
        batch = estimate_advantages(batch, algorithm)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        updater = Updater(model, optimizer, algorithm, 1.0, Parallel(), 8, cached_forward)
        for mask in isolation_passes(batch, algorithm):
            updater.run_pass(batch, mask, plan, UpdateStatistics.of(batch), step=1)
        results.append((len(forwards), [*model.parameters()]))
    (count, without), (fewer, with_kept) = results
    assert fewer == count - saved
    for computed, kept in zip(without, with_kept, strict=True):
        # A pass over some of the tokens scores fewer of them: its sums have another order.
        assert torch.equal(computed, kept) or (
            "lopti_eta" in settings and (computed - kept).abs().max() < 2e-5
        )


@pytest.mark.parametrize("case", ["no token", "all clipped", "no advantage"])
def test_a_step_without_a_gradient_moves_neither_weights_nor_momentum(case):
    algorithm = AlgorithmConfig(kl_coef=0.0)
    model = LogprobModel(random_model(), temperature=0.9, chunk_tokens=16)
    batch, plan = scored(model, algorithm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    updater = Updater(model, optimizer, algorithm, 1.0, Parallel(), 8)
    updater.run_pass(batch, batch.completion_mask, plan, UpdateStatistics.of(batch), step=1)
    before = copy.deepcopy([optimizer.state_dict()["state"], model.state_dict()])
    assert all(state["exp_avg"].any() for state in before[0].values())

    mask = batch.completion_mask
    ones = torch.ones_like(batch.advantages)
    old = batch.old_logprobs - 2.0  # every ratio is above e
    without = {
        "no token": (replace(batch, advantages=ones), 0 * mask),
        "all clipped": (replace(batch, advantages=ones, old_logprobs=old), mask),
        "no advantage": (replace(batch, advantages=0 * ones), mask),
    }
    statistics = UpdateStatistics.of(batch)
    updater.run_pass(*without[case], plan, statistics, step=2)
    assert (statistics.updates, statistics.skipped, statistics.grad_norm) == (0, 1, 0.0)
    assert (
        read_metrics([update_metrics(statistics, 1e-3)], Parallel())["optim/updates_skipped"] == 1
    )
    torch.testing.assert_close(
        [optimizer.state_dict()["state"], model.state_dict()], before, rtol=0, atol=0
    )


def test_a_non_finite_loss_stops_before_the_weights_change():
    model = LogprobModel(random_model(), 1.0, 16)
    before = [p.detach().clone() for p in model.parameters()]
    batch = replace(make_batch(), advantages=torch.full((8, 12), float("nan")))
    plan = plan_update_batches(batch, 8, 1000)
    batch = attach_logprobs(batch, model, None, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    updater = Updater(model, optimizer, AlgorithmConfig(kl_coef=0.0), 1.0, Parallel(), 8)
    with pytest.raises(DivergedError) as caught:
        updater.run_pass(batch, batch.completion_mask, plan, UpdateStatistics.of(batch), step=7)
    assert (caught.value.step, caught.value.quantity) == (7, "loss")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class Overflowing(Parallel):
    """A gradient norm beyond float32, which clipping would hide."""

    def step(self, *arguments):
        return math.inf


def test_a_gradient_norm_that_overflows_stops_the_run():
    model = LogprobModel(random_model(), 1.0, 16)
    algorithm = AlgorithmConfig(kl_coef=0.0)
    batch, plan = scored(model, algorithm)
    optimizer = torch.optim.SGD(model.parameters())
    updater = Updater(model, optimizer, algorithm, 1.0, Overflowing(), 8)
    with pytest.raises(DivergedError) as error:
        updater.run_pass(batch, batch.completion_mask, plan, UpdateStatistics.of(batch), step=7)
    diverged = error.value
    assert (diverged.step, diverged.quantity, diverged.value) == (7, "gradient norm", math.inf)


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1.0, 1.0, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.75, 0.5, 0.25]),
        ("cosine", 0, [1.0, 0.5 * (1 + 2**-0.5), 0.5, 0.5 * (1 - 2**-0.5)]),
        ("constant", 3, [0.25, 0.5, 0.75, 1.0]),
        ("linear", 2, [1 / 3, 2 / 3, 1.0, 0.5]),
    ],
)
def test_learning_rate(schedule, warmup, expected):
    config = OptimConfig(lr=1.0, lr_schedule=schedule, warmup_steps=warmup)
    assert [learning_rate(config, step, 4) for step in range(4)] == pytest.approx(expected)


def loss_of_half_truncated(aggregation, **settings):
    """The loss of a batch whose first four completions, of 29 of its 49 tokens, ran into the token
    limit.
    """
    algorithm = AlgorithmConfig(kl_coef=0.0, loss_aggregation=aggregation, **settings)
    model = LogprobModel(random_model(), 0.9, chunk_tokens=16)
    truncated = torch.tensor([1.0] * 4 + [0.0] * 4)
    batch = replace(make_batch(), truncated=truncated)
    plan = plan_update_batches(batch, 8, 40)
    batch = attach_logprobs(batch, model, None, plan)
    # An advantage of -1 at every token: the loss of a token is 1 before anything has moved.
    batch = replace(batch, advantages=-batch.completion_mask)
    statistics = UpdateStatistics.of(batch)
    updater = Updater(model, torch.optim.SGD(model.parameters()), algorithm, 1.0, Parallel(), 12)
    for mask in isolation_passes(batch, algorithm):
        updater.run_pass(batch, mask, plan, statistics, step=1)
    return float(statistics.loss)


@pytest.mark.parametrize(
    ("aggregation", "masked"),
    [("token_mean", 1.0), ("seq_mean_token_mean", 0.5), ("constant", 20 / (8 * 12))],
)
def test_truncated_completions_count_as_completions_and_not_as_tokens(aggregation, masked):
    assert loss_of_half_truncated(aggregation, mask_truncated=True) == pytest.approx(
        masked, rel=1e-5
    )
    whole = {"token_mean": 1.0, "seq_mean_token_mean": 1.0, "constant": 49 / (8 * 12)}
    assert loss_of_half_truncated(aggregation) == pytest.approx(whole[aggregation], rel=1e-5)


def test_statistics_add_up_and_a_learning_rate_of_zero_moves_nothing():
    algorithm = AlgorithmConfig(kl_coef=0.0)
    model = LogprobModel(random_model(), 0.9, chunk_tokens=16)
    batch = make_batch()
    plan = plan_update_batches(batch, 8, 40)
    batch = estimate_advantages(attach_logprobs(batch, model, None, plan), algorithm)
    batch = replace(batch, old_logprobs=batch.old_logprobs - 1.0)
    updater = Updater(
        model, torch.optim.SGD(model.parameters(), lr=1.0), algorithm, 1.0, Parallel(), 12
    )
    updater.set_learning_rate(0.0)
    totals = []
    for passes in (1, 2):
        statistics = UpdateStatistics.of(batch)
        for _ in range(passes):
            updater.run_pass(batch, batch.completion_mask, plan, statistics, step=1)
        totals.append((float(statistics.loss), statistics.grad_norm, float(statistics.updates)))
        assert torch.equal(statistics.times_updated, passes * batch.completion_mask)
        assert torch.equal(
            statistics.times_clipped, passes * batch.completion_mask * (batch.advantages > 0)
        )
        assert statistics.tokens["tokens"] == passes * batch.completion_mask.sum()
        assert float(statistics.ratio_max) == pytest.approx(math.e, rel=1e-5)
    assert totals[1] == pytest.approx([2 * number for number in totals[0]])
    assert min(map(abs, totals[0])) > 1e-3
    updater.set_learning_rate(0.25)
    assert [group["lr"] for group in updater.optimizer.param_groups] == [0.25]


def scored(model, algorithm, tokens=10_000):
    batch = make_batch()
    plan = plan_update_batches(batch, len(batch.rewards), tokens, layout=model.layout)
    batch = attach_logprobs(batch, model, copy.deepcopy(model), plan)
    return estimate_advantages(batch, algorithm), plan


PACKED_BY = {"padded": lambda lm: None, "cpu": use_packed_attention}


def logprob_model(packed_by="padded"):
    lm = random_model()
    PACKED_BY[packed_by](lm)
    model = LogprobModel(lm, temperature=0.9, chunk_tokens=16)
    assert model.layout == ("padded" if packed_by == "padded" else "shared_prompts")
    return model


@pytest.mark.parametrize("packed_by", PACKED_BY)
@pytest.mark.parametrize("loss", ["clipped", "gspo", "cispo"])
@pytest.mark.parametrize("tokens", [10_000, 40])
def test_a_pass_has_the_gradient_of_whole_rows(packed_by, loss, tokens):
    algorithm = AlgorithmConfig(loss=loss, kl_coef=0.1)
    model = logprob_model(packed_by)
    batch, plan = scored(model, algorithm, tokens)
    generator = torch.Generator().manual_seed(1)
    in_pass = (
        torch.rand(batch.completion_mask.shape, generator=generator) < 0.15
    ) * batch.completion_mask
    in_pass[1] = 0
    assert 0 < in_pass.sum() < batch.completion_mask.sum()

    totals = UpdateTotals(float(batch.completion_mask.sum()), float(len(batch.rewards)), 8)
    scores = model(batch.input_ids, batch.prompt_lengths, batch.completion_mask)
    update_loss(LossInputs.of(batch, scores.logprobs, in_pass, totals), algorithm).loss.backward()
    whole = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()

    statistics = UpdateStatistics.of(batch)
    updater = Updater(
        model, torch.optim.SGD(model.parameters(), lr=0.0), algorithm, 1e9, Parallel(), 8
    )
    loss_sum = updater.accumulate_gradients(batch, in_pass, plan[0], totals, statistics)
    assert torch.isfinite(loss_sum)
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        assert (parameter.grad - expected).abs().max() <= 1e-5 * max(
            1e-3, float(expected.abs().max())
        )
    assert 0 < statistics.tokens_computed < scores.computed * (2 if tokens == 40 else 1)
