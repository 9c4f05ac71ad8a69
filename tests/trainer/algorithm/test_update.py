import copy
from dataclasses import replace

import pytest
import torch

from tests.conftest import random_model
from tests.trainer.algorithm.batches import make_batch
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import plan_update_batches
from trainer.algorithm.isolation import isolation_passes
from trainer.algorithm.scoring import attach_logprobs
from trainer.algorithm.update import Updater, UpdateStatistics, learning_rate
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.schema import OptimConfig
from trainer.errors import DivergedError
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel


def updated_parameters(tokens_per_microbatch: int, algorithm: AlgorithmConfig, update_batch_size: int = 4):
    """Parameters and statistics after the passes over one rollout batch."""
    model = LogprobModel(random_model(), temperature=0.9, chunk_tokens=16)
    reference = copy.deepcopy(model)
    for parameter in reference.parameters():
        parameter.data += 0.01
    batch = make_batch()
    plan = plan_update_batches(batch, update_batch_size, tokens_per_microbatch)
    batch = attach_logprobs(batch, model, reference if algorithm.kl_coef else None, plan)
    batch = estimate_advantages(batch, algorithm)
    # A first step of Adam is the sign of a gradient, and that of pure rounding where eps is far below it.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
    statistics = UpdateStatistics.of(batch)
    updater = Updater(model, optimizer, algorithm, 1.0, Parallel(), 8)
    for mask in isolation_passes(batch, algorithm):
        updater.run_pass(batch, mask, plan, statistics, step=1)
    return [p.detach().clone() for p in model.parameters()], statistics


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"])
@pytest.mark.parametrize("eta", [0.0, 0.01])
def test_microbatches_do_not_change_the_update(aggregation, eta):
    algorithm = AlgorithmConfig(loss_aggregation=aggregation, lopti_eta=eta, kl_coef=0.1)
    whole, one = updated_parameters(10_000, algorithm)
    cut, many = updated_parameters(20, algorithm)
    assert one.updates == many.updates == (4 if eta else 2)
    assert many.loss == pytest.approx(one.loss, rel=1e-4)
    for a, b in zip(whole, cut, strict=True):
        assert (a - b).abs().max() < 2e-5


def test_ratio_is_exactly_one_on_the_first_update_batch():
    _, statistics = updated_parameters(40, AlgorithmConfig(kl_coef=0.0), update_batch_size=8)
    assert statistics.ratio_max == 1.0
    assert statistics.tokens["approx_kl"] == 0.0


@pytest.mark.parametrize("eta", [0.0, 0.01])
@pytest.mark.parametrize(("room", "saved"), [(1000, 2), (36, 1), (10, 0)])
def test_kept_forwards_change_nothing_but_the_number_of_forwards(eta, room, saved):
    # the first update batch has microbatches of 2 x 18 and 2 x 11 tokens
    algorithm = AlgorithmConfig(kl_coef=0.1, lopti_eta=eta)
    calls = {False: 0, True: 0}
    results = {}
    for keep in (False, True):
        model = LogprobModel(random_model(), temperature=0.9, chunk_tokens=16)
        model.register_forward_hook(lambda *_, keep=keep: calls.__setitem__(keep, calls[keep] + 1))
        batch = make_batch()
        plan = plan_update_batches(batch, 4, 40, kept_tokens=room if keep else 0)
        batch = attach_logprobs(batch, model, copy.deepcopy(model), plan)
        batch = estimate_advantages(batch, algorithm)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
        statistics = UpdateStatistics.of(batch)
        updater = Updater(model, optimizer, algorithm, 1.0, Parallel(), 8)
        for mask in isolation_passes(batch, algorithm):
            updater.run_pass(batch, mask, plan, statistics, step=1)
        results[keep] = [p.detach().clone() for p in model.parameters()]
    assert calls[True] == calls[False] - saved
    for computed, kept in zip(results[False], results[True], strict=True):
        # A pass over some of the tokens computes fewer of them: its numbers are rounded otherwise.
        assert torch.equal(computed, kept) if eta == 0 else (computed - kept).abs().max() < 2e-5


def test_an_empty_pass_takes_no_step():
    # no token of a random 61-word model has a probability of 0.999: the second pass is empty
    parameters, statistics = updated_parameters(1000, AlgorithmConfig(lopti_eta=0.999, kl_coef=0.0))
    plain, one_pass = updated_parameters(1000, AlgorithmConfig(kl_coef=0.0))
    assert statistics.updates == one_pass.updates == 2
    assert all(torch.equal(a, b) for a, b in zip(parameters, plain, strict=True))


def test_two_passes_differ_from_one():
    split, _ = updated_parameters(1000, AlgorithmConfig(lopti_eta=0.01, kl_coef=0.0))
    plain, _ = updated_parameters(1000, AlgorithmConfig(kl_coef=0.0))
    assert max(float((a - b).abs().max()) for a, b in zip(split, plain, strict=True)) > 1e-4


def test_a_non_finite_loss_stops_before_the_weights_change():
    model = LogprobModel(random_model(), 1.0, 16)
    before = [p.detach().clone() for p in model.parameters()]
    batch = replace(make_batch(), advantages=torch.full((8, 12), float("nan")))
    plan = plan_update_batches(batch, 8, 1000)
    batch = attach_logprobs(batch, model, None, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    updater = Updater(model, optimizer, AlgorithmConfig(kl_coef=0.0), 1.0, Parallel(), 8)
    with pytest.raises(DivergedError, match="diverged at step 7: loss is nan"):
        updater.run_pass(batch, batch.completion_mask, plan, UpdateStatistics.of(batch), step=7)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1.0, 1.0, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.75, 0.5, 0.25]),
        ("cosine", 0, [1.0, 0.5 * (1 + 2**-0.5), 0.5, 0.5 * (1 - 2**-0.5)]),
        ("constant", 3, [0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_learning_rate(schedule, warmup, expected):
    config = OptimConfig(lr=1.0, lr_schedule=schedule, warmup_steps=warmup)
    assert [learning_rate(config, step, 4) for step in range(4)] == pytest.approx(expected)


def test_adding_statistics_reads_no_number():
    """Tensors without data, whose numbers cannot be read, stand for those of a GPU that is still at work."""
    batch = make_batch()
    statistics = UpdateStatistics.of(batch)
    names = ("clipped", "dual_clipped", "approx_kl", "tokens", "ratio_max")
    for _ in range(2):
        statistics.add({name: torch.zeros((), device="meta") for name in names})
    assert statistics.tokens["clipped"].is_meta and statistics.ratio_max.is_meta
