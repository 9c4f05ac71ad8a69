from dataclasses import replace

import pytest
import torch

from tests.trainer.algorithm.batches import batch_of
from trainer.algorithm.passes import select_loss_tokens
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.papers.covariance import drawn

MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
LOGPROBS = torch.tensor([[-1.0, -3.0, -2.0], [-4.0, 0.0, 0.0]])
ADVANTAGES = torch.tensor([[2.0, 2.0, 2.0], [-3.0, -3.0, 0.0]])
# Means 0 and -2: the covariances are A * (logprob + 2), 2, -2 and 0 of the first completion, 6 and
# -6 of the second.
BATCH = batch_of(MASK, old_logprobs=LOGPROBS, advantages=ADVANTAGES)


def alone(items):
    return items


@pytest.mark.parametrize(
    ("loss", "chosen"),
    [
        # within 1 to 5
        ({"name": "clip_cov", "fraction": 1.0}, [[True, False, False], [False, False, False]]),
        ("kl_cov", [[False, False, False], [True, False, False]]),  # one at least
        ({"name": "kl_cov", "fraction": 0.4}, [[True, False, False], [True, False, False]]),
        # not where it is 0
        ({"name": "kl_cov", "fraction": 1.0}, [[True, True, False], [True, True, False]]),
    ],
)
def test_which_tokens_a_loss_singles_out(loss, chosen):
    assert select_loss_tokens(BATCH, AlgorithmConfig(loss=loss)).chosen.tolist() == chosen


def test_other_losses_single_out_none_and_an_empty_batch_has_none():
    assert select_loss_tokens(BATCH, AlgorithmConfig()).chosen is None
    empty = batch_of(torch.zeros(2, 3))
    for loss in ("clip_cov", "kl_cov"):
        assert not select_loss_tokens(empty, AlgorithmConfig(loss=loss)).chosen.any()


def test_candidates_are_drawn_at_random_and_as_many_over_all_ranks():
    candidates = torch.arange(100).view(4, 25) % 2 == 0
    draws = [
        drawn(candidates, 10, alone, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    ]
    assert [int(tokens.sum()) for tokens in draws] == [10, 10, 10]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not (draws[0] & ~candidates).any()
    before_ours = [1.0] * 5  # of another rank
    fewer = drawn(
        candidates, 10, lambda items: [*items, *before_ours], torch.Generator().manual_seed(0)
    )
    assert int(fewer.sum()) == 5


def test_lp_reg_protects_the_least_probable_bad_tokens_that_the_proxy_has():
    proxy = torch.tensor([[-0.9, -2.9, -1.9], [-torch.inf, -0.0, 0.0]])
    bad = replace(BATCH, advantages=-ADVANTAGES.abs() * MASK, token_statistics=proxy)
    # two of five tokens, one not in the proxy
    half = AlgorithmConfig(loss={"name": "lp_reg", "fraction": 0.5})
    assert select_loss_tokens(bad, half).chosen.tolist() == [
        [False, True, False],
        [False, False, False],
    ]
    assert not select_loss_tokens(bad, AlgorithmConfig(loss="lp_reg")).chosen.any()  # 1% of five
    good = replace(bad, advantages=MASK)
    assert not select_loss_tokens(good, half).chosen.any()
