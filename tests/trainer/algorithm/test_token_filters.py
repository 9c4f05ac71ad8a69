from dataclasses import replace

import pytest
import torch

from tests.trainer.algorithm.batches import batch_of
from trainer.algorithm.token_filters import counted_tokens, low_probability_tokens, select_tokens
from trainer.config.algorithm import AlgorithmConfig

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
def test_tokens_without_advantage_are_updated_for_a_penalty_in_the_loss_only(settings, kept):
    advantages = torch.tensor([[0.0, 0.0, 0.0], [-0.5, 0.5, 0.0]])
    batch = replace(batch_with(ENTROPIES), advantages=advantages)
    assert select_tokens(batch, AlgorithmConfig(**settings)).tolist() == kept


@pytest.mark.parametrize(
    ("settings", "counted"), [({}, MASK.tolist()), ({"mask_truncated": True}, [[0] * 3, [1, 1, 0]])]
)
def test_a_mean_over_tokens_counts_what_a_filter_leaves_out_but_no_truncated_completion(
    settings, counted
):
    batch = batch_with(ENTROPIES, truncated=(1.0, 0.0))
    config = AlgorithmConfig(token_filter="drop_high", lopti_eta=0.3, **settings)
    assert counted_tokens(batch, config).tolist() == counted
