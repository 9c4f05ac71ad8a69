import copy
from dataclasses import replace

import pytest
import torch

from tests.conftest import random_model
from tests.trainer.algorithm.batches import make_batch
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.asked import asked_tokens, cut_rows, tokens_to_compute
from trainer.algorithm.batching import plan_update_batches
from trainer.algorithm.loss import update_loss
from trainer.algorithm.loss_inputs import LossInputs, UpdateTotals
from trainer.algorithm.scoring import attach_logprobs
from trainer.algorithm.update import Updater, UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.cpu.attention import use_packed_attention
from trainer.parallel.ranks import Parallel
from trainer.policy.flex_attention import BLOCK, use_flex_attention
from trainer.policy.logprobs import LogprobModel

ASKED = torch.tensor([[0.0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]])


def test_a_pass_asks_for_its_tokens_and_gspo_for_their_completions():
    mask = torch.tensor([[1.0, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
    assert torch.equal(asked_tokens(ASKED, mask, AlgorithmConfig()), ASKED)
    gspo = AlgorithmConfig(loss="gspo")
    assert asked_tokens(ASKED, mask, gspo).tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]


def scored(model: LogprobModel, algorithm: AlgorithmConfig, tokens: int = 10_000):
    batch = make_batch()
    plan = plan_update_batches(batch, len(batch.rewards), tokens, packed=model.packs_rows)
    batch = attach_logprobs(batch, model, copy.deepcopy(model), plan)
    return estimate_advantages(batch, algorithm), plan


PACKED_BY = {"padded": lambda lm: None, "cpu": use_packed_attention, "flex": use_flex_attention}


def logprob_model(packed_by: str = "padded") -> LogprobModel:
    lm = random_model()
    PACKED_BY[packed_by](lm)
    model = LogprobModel(lm, temperature=0.9, chunk_tokens=16)
    assert model.packs_rows is (packed_by != "padded")
    return model


def test_rows_end_with_the_last_token_that_is_asked_for():
    batch = make_batch()
    asked = torch.zeros_like(batch.completion_mask)
    asked[0, 1] = asked[2, 0] = 1
    ids, prompts, mask = cut_rows(batch, asked)
    assert mask.shape[1] == 2
    assert ids.shape[1] == int((prompts + torch.tensor([2, 0, 1] + [0] * (len(prompts) - 3))).max())


def test_needed_are_prompts_once_and_completions_up_to_the_last_token():
    batch = make_batch()
    rows = torch.arange(3)
    batch = replace(batch, group_ids=torch.zeros_like(batch.group_ids))
    batch = replace(batch, prompt_lengths=torch.full_like(batch.prompt_lengths, 7))
    asked = torch.zeros_like(batch.completion_mask)
    asked[0, 3] = asked[2, 1] = asked[2, 0] = 1
    assert tokens_to_compute(batch, asked, rows) == 7 + 3 + 1
    assert tokens_to_compute(batch, torch.zeros_like(asked), rows) == 0


@pytest.mark.parametrize("packed_by", PACKED_BY)
@pytest.mark.parametrize("loss", ["clipped", "gspo", "cispo"])
@pytest.mark.parametrize("tokens", [10_000, 40])
def test_cut_rows_give_the_gradient_of_whole_rows(packed_by: str, loss: str, tokens: int):
    algorithm = AlgorithmConfig(loss=loss, kl_coef=0.1)
    model = logprob_model(packed_by)
    batch, plan = scored(model, algorithm, tokens)
    generator = torch.Generator().manual_seed(1)
    in_pass = (torch.rand(batch.completion_mask.shape, generator=generator) < 0.15) * batch.completion_mask
    in_pass[1] = 0
    assert 0 < in_pass.sum() < batch.completion_mask.sum()

    totals = UpdateTotals(float(batch.completion_mask.sum()), float(len(batch.rewards)), 8)
    scores = model(batch.input_ids, batch.prompt_lengths, batch.completion_mask)
    update_loss(LossInputs.of(batch, scores.logprobs, in_pass, totals), algorithm).loss.backward()
    whole = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()

    statistics = UpdateStatistics.of(batch)
    updater = Updater(model, torch.optim.SGD(model.parameters(), lr=0.0), algorithm, 1e9, Parallel(), 8)
    loss_sum = updater._accumulate_gradients(batch, in_pass, plan[0], totals, statistics)
    assert torch.isfinite(loss_sum)
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        assert (parameter.grad - expected).abs().max() <= 1e-5 * max(1e-3, float(expected.abs().max()))
    if packed_by == "flex":  # as many blocks as can be
        assert statistics.tokens_computed == 2 * BLOCK * len(plan[0].microbatches)
        return
    assert statistics.tokens_needed <= statistics.tokens_computed < scores.computed * (2 if tokens == 40 else 1)
    if packed_by == "cpu" and tokens == 10_000:
        assert statistics.tokens_computed == statistics.tokens_needed


def test_a_microbatch_without_tokens_of_the_pass_costs_one_position_behind_a_prompt():
    model = logprob_model()
    batch, plan = scored(model, AlgorithmConfig(kl_coef=0.1), 40)
    in_pass = torch.zeros_like(batch.completion_mask)
    in_pass[plan[0].microbatches[0][0], 0] = 1
    totals = UpdateTotals(float(batch.completion_mask.sum()), float(len(batch.rewards)), 8)
    statistics = UpdateStatistics.of(batch)
    updater = Updater(model, torch.optim.SGD(model.parameters(), lr=0.0), AlgorithmConfig(), 1e9, Parallel(), 8)
    updater._accumulate_gradients(batch, in_pass, plan[0], totals, statistics)
    others = len(plan[0].microbatches) - 1
    assert others > 0
    longest = int(batch.prompt_lengths.max()) + 1
    assert statistics.tokens_computed <= longest * (1 + others)
