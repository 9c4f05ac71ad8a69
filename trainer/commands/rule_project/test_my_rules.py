"""Tests of the rule: a wrong equation trains a different rule. Run python -m pytest."""

import torch
from my_rules import Cautious

from trainer.algorithm.rule_check import check_rules
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules import LossInputs, UpdateTotals


def test_a_token_that_moved_too_far_has_no_gradient() -> None:
    ones = torch.ones(1, 2)
    logprobs = torch.tensor([[-0.9, 0.0]], requires_grad=True)  # ratios 1.1 and 2.7
    tokens = LossInputs(
        logprobs=logprobs,
        old_logprobs=-ones,
        ref_logprobs=None,
        rollout_logprobs=None,
        advantages=ones,
        completion_mask=ones,
        token_mask=ones,
        totals=UpdateTotals(2, 1),
    )
    Cautious(strength=0.5)(tokens).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0, 0] < 0 == logprobs.grad[0, 1]


def test_the_rule_can_train_with_lopti() -> None:
    check_rules(AlgorithmConfig(loss="my_rules:Cautious", lopti_eta=0.5))
