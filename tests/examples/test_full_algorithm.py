"""The page for a reader gives the numbers of the trainer's own stages."""

import torch

from examples import full_algorithm
from tests.conftest import random_model
from tests.trainer.algorithm.batches import make_batch
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import plan_update_batches
from trainer.algorithm.passes import isolation_passes
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.scoring import attach_logprobs
from trainer.algorithm.update import Updater, UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel

GROUP_SIZE = 4  # of the hand-made batch
ETA = 0.02  # a random model of 61 words finds about half of its tokens less probable


def as_page(batch):
    """The same completions with prompts padded on the left."""
    longest = int(batch.prompt_lengths.max())
    width = batch.completion_mask.shape[1]
    tokens = torch.zeros(len(batch.rewards), longest + width, dtype=torch.long)
    attended = torch.zeros_like(tokens)
    for row, (prompt, completion) in enumerate(
        zip(batch.prompt_lengths, batch.completion_lengths, strict=True)
    ):
        place = slice(longest - int(prompt), longest + int(completion))
        tokens[row, place] = batch.input_ids[row, : prompt + completion]
        attended[row, place] = 1
    return full_algorithm.Batch(tokens, attended, batch.completion_mask, batch.rewards)


def test_one_update_is_the_trainers(monkeypatch):
    monkeypatch.setattr(full_algorithm, "ETA", ETA)
    monkeypatch.setattr(full_algorithm, "GROUP_SIZE", GROUP_SIZE)
    moved = []
    batch = make_batch()
    for is_page in (True, False):
        model = LogprobModel(random_model(), full_algorithm.TEMPERATURE, chunk_tokens=16)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if is_page:
            full_algorithm.update(model.causal_lm, optimizer, as_page(batch))
        else:
            algorithm = AlgorithmConfig(ar_alpha=full_algorithm.ALPHA, lopti_eta=ETA, kl_coef=0.0)
            plan = plan_update_batches(batch, len(batch.rewards), 10_000)
            scored = attach_logprobs(batch, model, None, plan)
            scored = reweight_advantages(estimate_advantages(scored, algorithm), algorithm)
            updater = Updater(
                model, optimizer, algorithm, full_algorithm.MAX_GRAD_NORM, Parallel(), 12
            )
            statistics = UpdateStatistics.of(scored)
            for token_mask in isolation_passes(scored, algorithm):
                assert token_mask.any()
                updater.run_pass(scored, token_mask, plan, statistics, step=1)
            assert statistics.updates == 2
        moved.append(
            [after.detach() - b for after, b in zip(model.parameters(), before, strict=True)]
        )
    largest = max(float(tensor.abs().max()) for tensor in moved[1])
    assert largest > 1e-3
    for of_page, of_trainer in zip(*moved, strict=True):
        assert float((of_page - of_trainer).abs().max()) < 1e-5 * largest


def test_it_trains_on_puzzles(tiny_policy, monkeypatch, capsys):
    monkeypatch.setattr(full_algorithm, "PROMPTS", 2)
    monkeypatch.setattr(full_algorithm, "MAX_NEW_TOKENS", 20)
    rewards = full_algorithm.train(2, str(tiny_policy))
    assert len(rewards) == 2 and all(-3 <= reward <= 3 for reward in rewards)
    assert f"step 2: reward {rewards[1]:.3f}" in capsys.readouterr().out
