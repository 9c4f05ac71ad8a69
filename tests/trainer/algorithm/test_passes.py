from dataclasses import replace
from typing import get_args

import pytest
import torch

from tests.trainer.algorithm.batches import batch_of
from trainer.algorithm.passes import (
    denominator_mask,
    isolation_passes,
    low_probability_tokens,
    select_tokens,
)
from trainer.commands.start import rule_of
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.schema import TrainConfig

MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])


def batch_with(entropies, mask=MASK, truncated=(0.0, 0.0)):
    old = torch.tensor([[0.2, 0.5, 0.9], [0.7, 0.1, 1.0]]).log()
    return batch_of(
        mask, old_logprobs=old, entropies=torch.tensor(entropies), truncated=torch.tensor(truncated)
    )


ENTROPIES = [[0.1, 0.5, 0.4], [0.2, 0.3, 9.0]]  # the last is padding


def test_a_token_at_eta_is_not_of_low_probability_and_padding_is_nothing():
    old = torch.tensor([[0.25, 0.5, 0.125], [0.75, 0.25, 1.0]]).log()
    assert low_probability_tokens(old, MASK, 0.25).tolist() == [[0, 0, 1], [0, 0, 0]]
    assert low_probability_tokens(old, MASK, 1.0).tolist() == MASK.tolist()
    # of tokens that are left out
    assert not low_probability_tokens(old, torch.zeros(2, 3), 1.0).any()


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"kl_coef": 0.1}, [[1, 1, 1], [1, 1, 0]]),  # the penalty pulls at them
        (
            {"kl_coef": 0.1, "kl_placement": "reward", "advantage": "reinforce_plus_plus"},
            [[0, 0, 0], [1, 1, 0]],
        ),
        ({"kl_coef": 0.0}, [[0, 0, 0], [1, 1, 0]]),
    ],
)
def test_zero_advantage_tokens_are_updated_only_for_a_loss_penalty(settings, kept):
    advantages = torch.tensor([[0.0, 0.0, 0.0], [-0.5, 0.5, 0.0]])
    batch = replace(batch_with(ENTROPIES), advantages=advantages)
    assert select_tokens(batch, AlgorithmConfig(**settings)).tolist() == kept


@pytest.mark.parametrize(
    ("settings", "counted"), [({}, MASK.tolist()), ({"mask_truncated": True}, [[0] * 3, [1, 1, 0]])]
)
def test_token_mean_counts_filtered_but_not_truncated_tokens(settings, counted):
    batch = batch_with(ENTROPIES, truncated=(1.0, 0.0))
    config = AlgorithmConfig(token_filter="drop_high", lopti_eta=0.3, **settings)
    assert denominator_mask(batch, config).tolist() == counted


MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
LOW = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
HIGH = [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]


@pytest.fixture
def batch():
    # the last position of row 1 is padding: log-probability 0 must not make it a "high" token
    old = torch.tensor([[0.2, 0.5, 0.9], [0.7, 0.1, 1.0]]).log()
    return batch_of(MASK, old_logprobs=old, advantages=torch.ones(2, 3))


def passes(batch, **settings):
    masks = isolation_passes(batch, AlgorithmConfig(**settings), torch.Generator().manual_seed(0))
    return [mask.tolist() for mask in masks]


def test_high_first_swaps_the_passes(batch):
    assert passes(batch, lopti_eta=0.5, lopti_order="high_first") == [HIGH, LOW]


@pytest.mark.parametrize(("token_filter", "kept"), [("drop_high", LOW), ("drop_low", HIGH)])
def test_filters_keep_one_side_in_one_pass(batch, token_filter, kept):
    assert passes(batch, lopti_eta=0.5, token_filter=token_filter) == [kept]


@pytest.mark.parametrize(
    ("interval", "kept"),
    [
        ([0.0, 0.5], LOW),  # 0.2 | 0.1
        ([0.5, 1.0], HIGH),  # 0.5, 0.9 | 0.7
        ([0.15, 0.65], [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
    ],
)
def test_interval_filter_keeps_probabilities_from_low_to_below_high(batch, interval, kept):
    settings = {"token_filter": "interval", "filter_interval": interval}
    assert passes(batch, **settings) == [kept]
    assert passes(batch, lopti_eta=0.5, **settings) == [kept]


def test_interval_includes_its_lower_bound_and_an_upper_bound_of_one():
    old = torch.tensor([[1.0, 0.5, 0.25]]).log()
    certain = batch_of(torch.ones(1, 3), old_logprobs=old, advantages=torch.ones(1, 3))
    assert passes(certain, token_filter="interval", filter_interval=[0.5, 1.0]) == [
        [[1.0, 1.0, 0.0]]
    ]


@pytest.mark.parametrize(
    "token_filter", get_args(AlgorithmConfig.model_fields["token_filter"].annotation)
)
def test_a_rule_is_named_lopti_where_every_filter_leaves_it_two_passes(batch, token_filter):
    batch = replace(batch, entropies=torch.ones(2, 3))
    two = len(passes(batch, lopti_eta=0.5, token_filter=token_filter)) == 2
    config = TrainConfig(algorithm=AlgorithmConfig(lopti_eta=0.5, token_filter=token_filter))
    assert config.algorithm.isolates == two
    assert ("Lopti" in rule_of(config)) == two


def test_random_split_has_the_same_sizes_and_covers_every_token_once(batch):
    seen = set()
    for seed in range(20):
        config = AlgorithmConfig(lopti_eta=0.5, lopti_split="random")
        first, second = isolation_passes(batch, config, torch.Generator().manual_seed(seed))
        assert first.sum() == 2
        assert torch.equal(first + second, MASK)
        again = isolation_passes(batch, config, torch.Generator().manual_seed(seed))
        assert torch.equal(again[0], first)
        seen.add(tuple(first.flatten().tolist()))
    assert len(seen) > 3  # it is really drawn


@pytest.mark.parametrize("split", ["probability", "random"])
def test_what_is_left_out_is_in_neither_pass(batch, split):
    cut = replace(batch, truncated=torch.tensor([1.0, 0.0]))
    config = AlgorithmConfig(lopti_eta=0.5, lopti_split=split, mask_truncated=True)
    for seed in range(10):
        first, second = isolation_passes(cut, config, torch.Generator().manual_seed(seed))
        assert (first + second).tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
        assert first.min() == second.min() == 0 and first.sum() == second.sum() == 1
