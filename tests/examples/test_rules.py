"""The rules beside the package by hand; those that other trainers have are in
`tests.reference_vectors`, too.
"""

from dataclasses import replace

import pytest
import torch

from tests.invariants.rules import algorithm
from tests.paths import ROOT
from tests.trainer.algorithm.batches import batch_of, loss_inputs, make_groups
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import build_batch, with_rewards
from trainer.algorithm.loss import update_loss
from trainer.algorithm.passes import select_loss_tokens
from trainer.algorithm.rule_check import check_rules
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules import StepSummary
from trainer.rules.interface import AdvantageInputs, UpdateTotals
from trainer.rules.papers import PAPER_ADVANTAGES, PAPER_LOSSES
from trainer.rules.papers.gdpo import part_values

# Two good completions and a bad one; one of the good tokens has a low probability.
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
    batch = select_loss_tokens(batch, config)
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
            {"name": "stare", "target_entropy": 1.0, "fraction": 0.5, "attenuate": 0.9},
            {},
            [[1.1, 1.1, 1], [1, 1, 1.1], [0.9, 1, 1]],
        ),
        # Low probability, A > 0, and an entropy below the 80th percentile, 0.46: the other one's is
        # 0.6.
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
    ("weight", "right"),
    [({}, 0.1), ({"positive_weight": 0.0}, 0.0), ({"correct_above": 2.0}, -1.0)],
)
def test_w_reinforce_has_one_advantage_for_right_and_one_for_wrong(weight, right):
    config = AlgorithmConfig(advantage={"name": "w_reinforce", **weight})
    batch = estimate_advantages(replace(BATCH, rewards=torch.tensor([1.0, 0.0, -3.0])), config)
    assert batch.advantages.tolist() == [[pytest.approx(right)] * 3, [-1.0] * 3, [-1.0, -1.0, 0.0]]


def test_reward_parts_are_unweighted_and_failures_share_theirs():
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
    for rule in [*rules, {"loss": {"name": "lp_reg", "fraction": 0.5}}]:
        check_rules(AlgorithmConfig(**rule))


def test_every_example_passes_the_check_of_a_rule_of_ones_own():
    losses = (
        "adaptive_entropy:AdaptiveEntropy",
        "ce_gppo:CeGppo",
        "clip_higher_schedule:ClipHigherSchedule",
        "entropy_ratio:EntropyRatio",
        "hard_prompts:HardPrompts",
        "moving_stare:MovingStare",
        "reweightings:Sigmoid",
    )
    advantages = (
        "entropy_shaped:EntropyShaped",
        "quantile_baseline:QuantileBaseline",
        "reweightings:right_only",
    )
    rules = [{"loss": name} for name in losses] + [{"advantage": name} for name in advantages]
    files = {path.stem for path in (ROOT / "examples" / "rules").glob("*.py")}
    assert {name.partition(":")[0] for rule in rules for name in rule.values()} == files
    for rule in rules:
        check_rules(algorithm(rule))


SHORT = [
    "adaptive_entropy",
    "clip_higher_schedule",
    "entropy_ratio",
    "hard_prompts",
    "moving_stare",
]


@pytest.mark.parametrize("name", SHORT)
def test_rules_with_a_state_or_statistics_take_about_20_lines(name):
    lines = (ROOT / "examples" / "rules" / f"{name}.py").read_text().splitlines()
    assert len(lines) <= 21


def gradient_of(rule, logprobs, **fields):
    """The gradient of the token losses of a rule with respect to the log-probabilities."""
    leaf = logprobs.clone().requires_grad_()
    config = AlgorithmConfig(loss=rule, kl_coef=0.0, loss_aggregation="seq_mean_token_sum")
    inputs = loss_inputs(
        leaf,
        BATCH.old_logprobs,
        BATCH.advantages,
        UpdateTotals(8, 1),
        completion_mask=MASK,
        token_mask=MASK,
        **fields,
    )
    update_loss(inputs, config).loss.backward()
    return leaf.grad


def by_equation(logprobs, weights, low=0.2, high=0.24):
    """The gradient of ``max(-A r, -A clip(r))`` times weights, by autograd in float64."""
    leaf = logprobs.double().requires_grad_()
    ratio = (leaf - BATCH.old_logprobs.double()).exp()
    advantages = BATCH.advantages.double()
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
    (losses * weights * MASK).sum().backward()
    return leaf.grad.float()


MOVED = BATCH.old_logprobs + torch.tensor([[0.1, -0.3, 0.23], [0.05, 0.26, 0.3], [-0.1, -0.4, 0.0]])


def test_sigmoid_reweighting_is_that_of_the_published_code():
    # the published formula: 2 sigmoid(k (pi - tau)), for all or for negative advantages only
    both = 2 / (1 + (-4 * (PROBABILITIES - 0.3)).exp())
    rule = {"name": "reweightings:Sigmoid", "slope": 4.0, "center": 0.3}
    expected = by_equation(MOVED, both)
    assert torch.allclose(gradient_of(rule, MOVED), expected, atol=1e-6)
    negative = both.where(BATCH.advantages < 0, 1.0)
    expected = by_equation(MOVED, negative)
    ours = gradient_of(rule | {"negative_only": True}, MOVED)
    assert torch.allclose(ours, expected, atol=1e-6)


def test_right_only_gives_one_above_the_mean_of_the_group():
    config = AlgorithmConfig(advantage={"name": "reweightings:right_only"})
    batch = estimate_advantages(replace(BATCH, rewards=torch.tensor([1.0, 0.0, -3.0])), config)
    assert batch.advantages.tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3]


def test_entropy_ratio_drops_tokens_whose_entropy_moved():
    current = ENTROPIES * torch.tensor([[1.0, 1.04, 1.06], [0.96, 0.94, 1.0], [0.9, 1.01, 1.0]])
    kept = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    fields = {"entropies": current, "old_entropies": ENTROPIES}
    ours = gradient_of("entropy_ratio:EntropyRatio", MOVED, **fields)
    torch.testing.assert_close(ours, by_equation(MOVED, kept))


def test_the_upper_clip_of_a_state_counts():
    ours = gradient_of(
        "clip_higher_schedule:ClipHigherSchedule", MOVED, state={"high": 0.28}, entropies=None
    )
    torch.testing.assert_close(ours, by_equation(MOVED, 1.0, high=0.28))
    at_default = by_equation(MOVED, 1.0)
    assert (ours != at_default).sum() == 1  # the ratio of exp(0.23) is between 1.24 and 1.28
    rule = {"name": "clip_higher_schedule:ClipHigherSchedule", "clip_ratio_low": 0.35}
    ours = gradient_of(rule, MOVED, state={"high": 0.28}, entropies=None)
    torch.testing.assert_close(ours, by_equation(MOVED, 1.0, low=0.35, high=0.28))
    assert (ours != by_equation(MOVED, 1.0, high=0.28)).any()


def test_hard_prompts_weighs_groups_by_their_mean_and_the_step():
    means = torch.tensor([[0.25], [0.25], [1.5]])
    ours = gradient_of("hard_prompts:HardPrompts", MOVED, group_means=means, step=1, total_steps=2)
    weight = torch.tensor([[1 + 0.5 * 0.75], [1 + 0.5 * 0.75], [1.0]])
    torch.testing.assert_close(ours, by_equation(MOVED, weight))


def test_the_quantile_baseline_trains_on_successes_or_on_failures():
    rewards = torch.tensor([1.0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 0])
    batch = batch_of(
        torch.ones(12, 1), rewards=rewards, group_ids=torch.arange(3).repeat_interleave(4)
    )
    config = algorithm({"advantage": "quantile_baseline:QuantileBaseline"})
    advantages = estimate_advantages(batch, config).advantages.flatten()
    # of four rewards the second smallest is the 0.4-quantile; standard deviations 1/2, 1/3^(1/2)
    assert advantages.tolist() == pytest.approx(
        [2, 0, 0, 0, 0, 3**0.5, 3**0.5, 0, 0, 0, 0, -2], abs=1e-4
    )


def test_entropy_shaped_advantages_are_bounded_by_half_of_their_size():
    batch = replace(BATCH, rewards=torch.tensor([1.0, 0.0, 0.5]), group_ids=torch.tensor([0, 0, 1]))
    config = algorithm({"advantage": "entropy_shaped:EntropyShaped"})
    advantages = estimate_advantages(batch, config).advantages
    a = 0.5 / 0.5**0.5
    expected = torch.tensor([[a, a, a], [-a, -a, -a], [0.5, 0.5, 0.0]])
    bonus = (0.4 * ENTROPIES).minimum(expected.abs() / 2)
    torch.testing.assert_close(advantages, expected + bonus * MASK, rtol=1e-5, atol=1e-6)


def test_moving_stare_weighs_by_its_state():
    surprising = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]]).bool()
    state = {"amplify": 1.3, "attenuate": 0.6}
    ours = gradient_of("moving_stare:MovingStare", MOVED, chosen=surprising, state=state)
    weight = torch.tensor([[1, 1.3, 1], [1, 1, 1.3], [0.6, 1, 1]])
    torch.testing.assert_close(ours, by_equation(MOVED, weight))


def test_moving_stare_moves_both_weights_with_the_entropy_within_bounds():
    rule = algorithm({"loss": {"name": "moving_stare:MovingStare", "attenuate": 0.9}}).loss
    low, high = summary_of(0.29), summary_of(0.31)
    state = rule.next_state(rule.initial_state(), low)
    assert state == {"amplify": pytest.approx(1.11), "attenuate": pytest.approx(0.89)}
    state = rule.next_state(rule.next_state(state, high), high)
    assert state == {"amplify": pytest.approx(1.09), "attenuate": pytest.approx(0.91)}
    for summary, end in (
        (low, {"amplify": 1.5, "attenuate": 0.5}),
        (high, dict.fromkeys(state, 1)),
    ):
        for _ in range(60):
            state = rule.next_state(state, summary)
        assert state == end


@pytest.mark.parametrize(("on", "coefficient"), [(1.0, 0.015), (0.0, 0.0)])
def test_adaptive_entropy_subtracts_its_bonus_while_entropy_is_low(on, coefficient):
    logprobs = MOVED.clone().requires_grad_()
    entropies = (logprobs**2).where(MASK.bool(), 0.0)  # any function of the policy
    rule = algorithm({"loss": "adaptive_entropy:AdaptiveEntropy"}).loss
    inputs = loss_inputs(
        logprobs, BATCH.old_logprobs, BATCH.advantages, UpdateTotals(8, 1), completion_mask=MASK
    )
    inputs = replace(inputs, entropies=entropies, state={"c": 0.015, "on": on})
    (rule(inputs).losses * MASK).sum().backward()
    bonus = (2 * coefficient * MOVED).where(MASK.bool(), 0.0)
    torch.testing.assert_close(logprobs.grad, by_equation(MOVED, 1.0) - bonus)


def test_the_weight_of_adaptive_entropy_follows_the_entropy():
    rule = algorithm({"loss": "adaptive_entropy:AdaptiveEntropy"}).loss
    state = rule.initial_state()
    assert state["c"] == 0
    for entropy, c, on in ((0.1, 0.005, 1), (0.2, 0.01, 1), (0.21, 0.005, 0), (3, 0, 0), (3, 0, 0)):
        state = rule.next_state(state, summary_of(entropy))
        assert state == {"c": pytest.approx(c), "on": on}


def summary_of(entropy):
    return StepSummary(
        step=1,
        total_steps=9,
        reward=0.5,
        accuracy=0.5,
        entropy=entropy,
        clip_fraction=0.0,
        approx_kl=0.0,
    )
