"""The engine's log-probabilities in place of a forward before the update."""

import copy
from dataclasses import replace

import pytest
import torch

from tests.conftest import random_model
from tests.trainer.algorithm.batches import make_batch
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import build_batch, plan_update_batches
from trainer.algorithm.first_forwards import FirstForwards
from trainer.algorithm.isolation import isolation_passes
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.scoring import attach_logprobs
from trainer.algorithm.update import Updater, UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel, TokenScores
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine
from trainer.types import Completion, Problem, Rollout, RolloutGroup, TrainBatch

TEMPERATURE = 0.7


def sampled_batch(model) -> TrainBatch:
    """Two groups of three completions that the model wrote itself."""
    prompts, seeds = [[5, 9, 3, 12], [7, 1, 4, 8, 30, 2]], [[1, 2, 3], [4, 5, 6]]
    engine = TransformersEngine(model, pad_token_id=0)
    params = SamplingParams(TEMPERATURE, max_new_tokens=14, stop_token_ids=(2, 3, 4, 5))
    problem = Problem("", "", "", "", "test")
    groups = [
        RolloutGroup(
            number,
            [
                Rollout(
                    number,
                    problem,
                    tuple(prompt),
                    Completion(sample.token_ids, sample.logprobs, "", sample.finish_reason),
                    float(k),
                    {},
                    True,
                )
                for k, sample in enumerate(samples)
            ],
        )
        for number, (prompt, samples) in enumerate(
            zip(prompts, engine.generate(prompts, seeds, params), strict=True)
        )
    ]
    return build_batch(groups, 0, torch.device("cpu"))


def trained(recompute: bool, update_batch_size: int, **rule):
    """What the optimizer steps of a training step moved, its statistics, and its batch."""
    algorithm = AlgorithmConfig(kl_coef=0.1, ar_alpha=0.3, **rule)
    lm = random_model()
    model, reference = (LogprobModel(copy.deepcopy(lm), TEMPERATURE, 16) for _ in range(2))
    for parameter in reference.parameters():
        parameter.data += 0.01
    batch = sampled_batch(lm)
    plan = plan_update_batches(batch, update_batch_size, 40)
    batch = attach_logprobs(batch, model if recompute else None, reference, plan)
    batch = reweight_advantages(estimate_advantages(batch, algorithm), algorithm)
    statistics = UpdateStatistics.of(batch)
    updater = Updater(model, torch.optim.SGD(model.parameters(), lr=1.0), algorithm, 1e9, Parallel(), 14)
    for mask in isolation_passes(batch, algorithm):
        updater.run_pass(batch, mask, plan, statistics, step=1)
    moved = [
        (after - before).detach()
        for after, before in zip(model.causal_lm.parameters(), lm.parameters(), strict=True)
    ]
    return moved, statistics, batch


@pytest.mark.parametrize("rule", [{}, {"lopti_eta": 0.02}, {"loss": "gspo"}, {"advantage": "reinforce_plus_plus"}])
def test_with_an_exact_engine_gradients_are_those_of_recomputed_logprobs(rule):
    expected, _, batch = trained(True, 6, **rule)
    moved, _, _ = trained(False, 6, **rule)
    assert float((batch.old_logprobs - batch.rollout_logprobs).abs().max()) < 1e-5
    largest = max(float(tensor.abs().max()) for tensor in expected)
    assert largest > 0
    for one, other in zip(moved, expected, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * max(1.0, largest)


def test_the_update_finds_what_a_forward_before_it_would_have():
    _, recomputed, batch = trained(True, 6)
    _, statistics, engine_batch = trained(False, 6)
    assert recomputed.ratio_max == 1.0 and statistics.ratio_max == pytest.approx(1.0, abs=1e-4)
    assert recomputed.first is None and engine_batch.rollout_logprobs is None
    found = statistics.first.complete(engine_batch)
    assert torch.equal(statistics.first.known, batch.completion_mask)
    assert torch.equal(statistics.first.unmoved, batch.completion_mask)
    assert torch.allclose(statistics.first.logprobs, batch.old_logprobs, atol=1e-5)
    assert torch.allclose(found.entropies, batch.entropies, atol=1e-5)
    assert torch.allclose(found.gradient_norms, batch.gradient_norms, atol=1e-5)


def test_only_the_first_optimizer_step_meets_the_policy_of_before():
    _, statistics, batch = trained(False, 3)
    first = statistics.first
    assert torch.equal(first.unmoved[:3], batch.completion_mask[:3]) and not first.unmoved[3:].any()
    assert torch.equal(first.known, batch.completion_mask)
    _, statistics, batch = trained(False, 6, lopti_eta=0.02)
    low = (batch.old_logprobs.exp() < 0.02) * batch.completion_mask
    assert 0 < low.sum() < batch.completion_mask.sum()
    assert torch.equal(statistics.first.unmoved, low)
    assert torch.equal(statistics.first.known, batch.completion_mask)


def test_a_token_is_noted_once():
    batch = make_batch()
    first, rows = FirstForwards.of(batch), torch.tensor([1])
    asked = torch.tensor([[1.0, 0, 1, 0, 0]])
    scores = TokenScores(*(torch.full((1, 3), value) for value in (-1.0, 2.0, 0.5)))
    assert first.wants(rows, asked)
    first.add(rows, asked, scores, is_unmoved=True)
    assert not first.wants(rows, asked)
    first.add(rows, torch.ones(1, 3), scores._replace(logprobs=torch.full((1, 3), -9.0)), is_unmoved=False)
    assert first.logprobs[1, :4].tolist() == [-1, -9, -1, 0]
    assert first.unmoved[1, :4].tolist() == [1, 0, 1, 0]
    assert replace(batch, entropies=first.entropies).entropies[1, :3].tolist() == [2, 2, 2]
