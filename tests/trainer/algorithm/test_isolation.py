import math
from dataclasses import replace

import pytest
import torch

from trainer.algorithm.isolation import first_pass_reuses_forwards, isolation_passes
from trainer.config.algorithm import AlgorithmConfig
from trainer.types import TrainBatch

MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
LOW = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
HIGH = [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]


@pytest.fixture
def batch() -> TrainBatch:
    # the last position of row 1 is padding: log-probability 0 must not make it a "high" token
    old = torch.tensor([[0.2, 0.5, 0.9], [0.7, 0.1, 1.0]]).log()
    empty = torch.zeros(0)
    return TrainBatch(empty, empty, MASK, old, old, None, empty, empty, torch.ones(2, 3), empty, empty, empty)


def passes(batch: TrainBatch, **settings) -> list[list[list[float]]]:
    masks = isolation_passes(batch, AlgorithmConfig(**settings), torch.Generator().manual_seed(0))
    return [mask.tolist() for mask in masks]


def test_eta_zero_is_one_pass_over_everything(batch):
    assert passes(batch) == [MASK.tolist()]


def test_low_probability_tokens_come_first_and_a_token_at_eta_is_not_low(batch):
    assert passes(batch, lopti_eta=0.5) == [LOW, HIGH]


def test_high_first_swaps_the_passes(batch):
    assert passes(batch, lopti_eta=0.5, lopti_order="high_first") == [HIGH, LOW]


@pytest.mark.parametrize(("token_filter", "kept"), [("drop_high", LOW), ("drop_low", HIGH)])
def test_filters_keep_one_side_in_one_pass(batch, token_filter, kept):
    assert passes(batch, lopti_eta=0.5, token_filter=token_filter) == [kept]


def test_random_split_has_the_same_sizes_and_covers_every_token_once(batch):
    seen = set()
    for seed in range(20):
        config = AlgorithmConfig(lopti_eta=0.5, lopti_split="random")
        first, second = isolation_passes(batch, config, torch.Generator().manual_seed(seed))
        assert first.sum() == 2
        assert torch.equal(first + second, MASK)
        seen.add(tuple(first.flatten().tolist()))
    assert len(seen) > 3  # it is really drawn


def test_eta_one_has_an_empty_second_pass_unless_a_token_is_certain(batch):
    low, high = passes(batch, lopti_eta=1.0)
    assert low == MASK.tolist()
    assert not any(map(any, high))
    assert math.isclose(sum(map(sum, low)), 5)


@pytest.mark.parametrize(
    ("improbable", "settings", "reused"),
    [
        # Ten completion tokens behind a prompt of two are 11 positions; up to the improbable one 7, or 8.
        (5, {"lopti_eta": 0.5}, False),
        (6, {"lopti_eta": 0.5}, True),
        (1, {"lopti_eta": 0.5}, False),
        (1, {"lopti_eta": 0.5, "lopti_order": "high_first"}, True),
        (1, {"lopti_eta": 0.5, "loss": "gspo"}, True),
        (1, {}, True),
    ],
)
def test_forwards_are_reused_where_the_first_pass_needs_most_positions(improbable, settings, reused):
    logprobs = torch.full((1, 10), math.log(0.9))
    logprobs[0, improbable] = math.log(0.1)
    batch = replace(
        TrainBatch(*(torch.zeros(0) for _ in range(12))),
        completion_mask=torch.ones(1, 10),
        prompt_lengths=torch.tensor([2]),
        group_ids=torch.tensor([0]),
        rollout_logprobs=logprobs,
        advantages=torch.zeros(1, 10),
    )
    assert first_pass_reuses_forwards(batch, AlgorithmConfig(**settings)) == reused
