"""The rules beside the package by hand; those that other trainers have are in
`tests.reference_vectors`, too.
"""

from dataclasses import replace

import pytest
import torch

from tests.paths import ROOT
from tests.trainer.algorithm.batches import batch_of, loss_inputs, make_groups
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import build_batch, with_rewards
from trainer.algorithm.loss import update_loss
from trainer.algorithm.passes import choose_tokens
from trainer.algorithm.rule_check import check_rules
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.interface import AdvantageInputs, UpdateTotals
from trainer.rules.papers import PAPER_ADVANTAGES, PAPER_LOSSES
from trainer.rules.papers.gdpo import part_values

# Two good completions and a bad one; of the good tokens one is improbable.
PROBABILITIES = torch.tensor([[0.5, 0.001, 0.9], [0.8, 0.7, 0.001], [0.1, 0.6, 0.0]])
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
ENTROPIES = torch.tensor([[0.2, 0.1, 0.3], [0.4, 0.5, 0.6], [0.1, 0.2, 0.0]])
BATCH = batch_of(
    MASK,
    old_logprobs=PROBABILITIES.log().masked_fill(MASK == 0, 0.0),
    entropies=ENTROPIES,
    advantages=torch.tensor([[1.0], [1.0], [-2.0]]) * MASK,
)


def weights(rule, **fields):
    """The gradient of each token's loss at ratio 1, over that of ``-A r``; 1 where there is
    none.
    """
    batch = replace(BATCH, **fields)
    config = AlgorithmConfig(loss=rule, kl_coef=0.0, loss_aggregation="seq_mean_token_sum")
    batch = choose_tokens(batch, config)
    logprobs = batch.old_logprobs.clone().requires_grad_()
    inputs = loss_inputs(
        logprobs,
        batch.old_logprobs,
        batch.advantages,
        UpdateTotals(8, 1),
        completion_mask=MASK,
        token_mask=MASK,
        chosen=batch.chosen,
    )
    update_loss(inputs, config).loss.backward()
    return (logprobs.grad / -batch.advantages).nan_to_num(1.0).tolist()


@pytest.mark.parametrize(
    ("rule", "fields", "expected"),
    [
        # 10% of six and of two tokens, rounded up, are one each: the most surprising two of A > 0
        # are equal.
        ({"name": "stare", "target_entropy": 0.31}, {}, [[1, 1.1, 1], [1, 1, 1.1], [1, 1, 1]]),
        # the mean entropy is 2.4 / 8
        ({"name": "stare", "target_entropy": 0.29}, {}, [[1, 1, 1]] * 3),
        (
            {"name": "stare", "target_entropy": 1.0, "share": 0.5, "attenuate": 0.9},
            {},
            [[1.1, 1.1, 1], [1, 1, 1.1], [0.9, 1, 1]],
        ),
        # Improbable, A > 0, and an entropy below the 80th percentile, 0.46: the other one's is 0.6.
        ("stapo", {}, [[1, 0, 1], [1, 1, 1], [1, 1, 1]]),
        (
            {"name": "stapo", "entropy_quantile": 1.0},
            {"entropies": ENTROPIES.flip(1)},
            [[1, 0, 1], [1, 1, 0], [1, 1, 1]],
        ),
        ({"name": "stapo", "probability": 0.0005}, {}, [[1, 1, 1]] * 3),
        ("stapo", {"advantages": -MASK}, [[1, 1, 1]] * 3),
    ],
)
def test_which_tokens_a_rule_weights(rule, fields, expected):
    assert torch.allclose(torch.tensor(weights(rule, **fields)), torch.tensor(expected).float())


@pytest.mark.parametrize(
    ("weight", "right"), [({}, 0.1), ({"positive_weight": 0.0}, 0.0), ({"right_above": 2.0}, -1.0)]
)
def test_w_reinforce_has_one_advantage_for_right_and_one_for_wrong(weight, right):
    config = AlgorithmConfig(advantage={"name": "w_reinforce", **weight})
    batch = estimate_advantages(replace(BATCH, rewards=torch.tensor([1.0, 0.0, -3.0])), config)
    assert batch.advantages.tolist() == [[pytest.approx(right)] * 3, [-1.0] * 3, [-1.0, -1.0, 0.0]]


def test_parts_of_rewards_come_without_their_weights_and_failures_share_theirs():
    (group,) = make_groups([[1, 1, 1]], [2])
    breakdowns = [
        ({"math": 2.0, "length": 0.5}, 2.5),
        ({"math": 0.0, "length": 1.0}, 1.0),
        ({}, -3.0),
    ]
    rollouts = [
        replace(rollout, reward=reward, reward_breakdown=parts)
        for rollout, (parts, reward) in zip(group.rollouts, breakdowns, strict=True)
    ]
    groups = [replace(group, rollouts=rollouts)]
    batch = build_batch(groups, 0, torch.device("cpu"))
    for functions, length, math in (
        ({"math": 2.0, "my.module:length": 0.5}, [1.0, 2.0, -3.0], [1.0, 0.0, -0.75]),
        ({"math": 3.0}, [0.5 / 3, 1 / 3, -0.5], [2 / 3, 0.0, -0.5]),
    ):
        inputs = AdvantageInputs.of(
            with_rewards(batch, groups, functions), 0.0, lambda tensor: tensor
        )
        assert part_values(inputs, "length").tolist() == pytest.approx(length)
        assert part_values(inputs, "math").tolist() == pytest.approx(math)


def test_every_rule_of_a_paper_is_found_by_name_and_passes_the_check():
    rules = [{"loss": name} for name in PAPER_LOSSES]
    rules += [{"advantage": name} for name in PAPER_ADVANTAGES]
    files = {path.stem for path in (ROOT / "trainer" / "rules" / "papers").glob("*.py")}
    homes = {
        rule.__module__.rpartition(".")[2]
        for rule in (*PAPER_LOSSES.values(), *PAPER_ADVANTAGES.values())
    }
    assert homes == files - {"__init__"}
    # of few tokens Lp-Reg chooses none
    for rule in [*rules, {"loss": {"name": "lp_reg", "share": 0.5}}]:
        check_rules(AlgorithmConfig(**rule))
