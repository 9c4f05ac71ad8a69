"""The engine's log-probabilities in place of a forward before the update."""

import copy

import pytest
import torch

from tests.conftest import random_model
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import build_batch, plan_update_batches
from trainer.algorithm.isolation import isolation_passes
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.scoring import attach_logprobs
from trainer.algorithm.update import Updater, UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine
from trainer.types import Completion, Problem, Rollout, RolloutGroup, TrainBatch

TEMPERATURE = 0.7


def sampled_batch(model) -> TrainBatch:
    """Two groups of three completions that the model wrote itself."""
    prompts, seeds = [[5, 9, 3, 12], [7, 1, 4, 8, 30, 2]], [[1, 2, 3], [4, 5, 6]]
    engine = TransformersEngine(model, pad_token_id=0)
    params = SamplingParams(TEMPERATURE, max_new_tokens=14, stop_token_ids=(2, 3, 4, 5))
    problem, groups = Problem("", "", "", "", "test"), []
    for number, samples in enumerate(engine.generate(prompts, seeds, params)):
        written = [Completion(one.token_ids, one.logprobs, "", one.finish_reason) for one in samples]
        ids = tuple(prompts[number])
        rollouts = [Rollout(number, problem, ids, one, float(k), {}, True) for k, one in enumerate(written)]
        groups.append(RolloutGroup(number, rollouts))
    return build_batch(groups, 0, torch.device("cpu"))


def trained(recompute: bool, **rule):
    """What the optimizer step of a training step moved, and its batch."""
    algorithm = AlgorithmConfig(kl_coef=0.1, ar_alpha=0.3, **rule)
    lm = random_model()
    model, reference = (LogprobModel(copy.deepcopy(lm), TEMPERATURE, 16) for _ in range(2))
    for parameter in reference.parameters():
        parameter.data += 0.01
    batch = sampled_batch(lm)
    plan = plan_update_batches(batch, 6, 40)
    batch = attach_logprobs(batch, model if recompute else None, reference, plan)
    batch = reweight_advantages(estimate_advantages(batch, algorithm), algorithm)
    statistics = UpdateStatistics.of(batch)
    updater = Updater(model, torch.optim.SGD(model.parameters(), lr=1.0), algorithm, 1e9, Parallel(), 14)
    for mask in isolation_passes(batch, algorithm):
        updater.run_pass(batch, mask, plan, statistics, step=1)
    moved = [
        (after - before).detach() for after, before in zip(model.causal_lm.parameters(), lm.parameters(), strict=True)
    ]
    return moved, batch


@pytest.mark.parametrize("rule", [{}, {"lopti_eta": 0.02}, {"loss": "gspo"}, {"advantage": "reinforce_plus_plus"}])
def test_with_an_exact_engine_gradients_are_those_of_recomputed_logprobs(rule):
    (expected, batch), (moved, _) = trained(True, **rule), trained(False, **rule)
    assert float((batch.old_logprobs - batch.rollout_logprobs).abs().max()) < 1e-5
    largest = max(float(tensor.abs().max()) for tensor in expected)
    assert largest > 0
    for one, other in zip(moved, expected, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * max(1.0, largest)
