"""Holds the algorithms against recorded inputs and outputs of the published implementation and of
other trainers.

``python -m tests.reference_vectors [FILE ...]`` prints one line per family with the largest
relative error and exits with 1 when a family is above 1e-5 (rewards must be equal).
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rewards.knights_knaves import score
from tests import update_rule_vectors
from tests.paths import DATA
from tests.trainer.algorithm.batches import batch_of, loss_inputs
from tests.update_rule_vectors import relative_error
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.loss import kl_penalty, update_loss
from trainer.algorithm.passes import isolation_passes
from trainer.algorithm.reweighting import reweight
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.advantages.reinforce import discounted_returns, token_rewards
from trainer.rules.interface import AdvantageInputs, LossInputs, UpdateTotals

TOLERANCE = 1e-5
BUNDLED = (DATA / "reference_vectors.json", DATA / "update_rules.json")

Case = dict[str, Any]


def tensors(case: Case, *names: str) -> Iterator[Tensor]:
    return (torch.tensor(case[name]) for name in names)


def check_grpo(case: Case) -> Iterator[float]:
    scores, group_ids, mask = tensors(case, "scores", "group_ids", "mask")
    batch = estimate_advantages(
        batch_of(mask, rewards=scores, group_ids=group_ids), AlgorithmConfig()
    )
    yield relative_error(batch.advantages, case["advantages"])


def check_reinforce_plus_plus(case: Case) -> Iterator[float]:
    scores, mask, old, ref = tensors(case, "scores", "mask", "old_logprobs", "ref_logprobs")
    batch = batch_of(mask, rewards=scores, old_logprobs=old, ref_logprobs=ref)
    per_token = token_rewards(AdvantageInputs.of(batch, case["kl_coef"], lambda tensor: tensor))
    yield relative_error(per_token * mask, torch.tensor(case["token_rewards"]) * mask)
    returns = discounted_returns(per_token, mask, case["gamma"])
    yield relative_error(returns * mask, torch.tensor(case["returns"]) * mask)
    rule = {"name": "reinforce_plus_plus", "gamma": case["gamma"]}
    config = AlgorithmConfig(advantage=rule, kl_coef=case["kl_coef"])
    yield relative_error(
        estimate_advantages(batch, config).advantages * mask,
        torch.tensor(case["advantages"]) * mask,
    )


def check_reweighting(case: Case) -> Iterator[float]:
    advantages, old, mask = tensors(case, "advantages", "old_logprobs", "mask")
    ours = reweight(advantages, old, case["alpha"])
    yield relative_error(ours * mask, torch.tensor(case["reweighted"]) * mask)


def check_policy_loss(case: Case) -> Iterator[float]:
    logprobs, old, advantages, mask = tensors(
        case, "logprobs", "old_logprobs", "advantages", "mask"
    )
    logprobs.requires_grad_()
    config = AlgorithmConfig(
        loss_aggregation=case["aggregation"].replace("-", "_"),
        kl_coef=0.0,
        loss={
            "clip_ratio_low": case["clip_low"],
            "clip_ratio_high": case["clip_high"],
            "dual_clip": case["dual_clip"],
        },
    )
    totals = UpdateTotals(float(mask.sum()), len(mask))
    output = update_loss(
        loss_inputs(logprobs, old, advantages, totals, completion_mask=mask, token_mask=mask),
        config,
    )
    output.loss.backward()
    tokens = output.metrics["tokens"]
    yield relative_error(output.loss.detach(), case["loss"])
    yield relative_error(logprobs.grad, case["grad_logprobs"])
    yield relative_error(output.metrics["clipped"] / tokens, case["clip_fraction"])
    yield relative_error(output.metrics["approx_kl"] / tokens, case["approx_kl"])
    yield relative_error(output.metrics["dual_clipped"] / tokens, case["dual_clip_fraction"])


def check_kl(case: Case) -> Iterator[float]:
    logprobs, ref, mask = tensors(case, "logprobs", "ref_logprobs", "mask")
    published = AlgorithmConfig(kl_estimator=case["estimator"], kl_log_ratio_clamp=5.0)
    ours = kl_penalty(logprobs, ref, published)
    yield relative_error(ours, case["kl"])
    yield relative_error((ours * mask).sum() / mask.sum(), case["token_mean"])


def check_lopti(case: Case) -> Iterator[float]:
    old, ref, advantages, mask = tensors(case, "old_logprobs", "ref_logprobs", "advantages", "mask")
    config = AlgorithmConfig(
        lopti_eta=case["eta"],
        kl_coef=case["kl_coef"],
        kl_log_ratio_clamp=5.0,
        loss={
            "clip_ratio_low": case["clip_low"],
            "clip_ratio_high": case["clip_high"],
            "dual_clip": case["dual_clip"],
        },
    )
    batch = batch_of(
        mask, old_logprobs=old, rollout_logprobs=old, ref_logprobs=ref, advantages=advantages
    )
    passes = isolation_passes(batch, config)
    assert len(passes) == len(case["low_then_high"])
    totals = UpdateTotals(float(mask.sum()), len(mask))
    for token_mask, published in zip(passes, case["low_then_high"], strict=True):
        logprobs = torch.tensor(case["logprobs"], requires_grad=True)
        token_mask = token_mask.to(logprobs.device)
        output = update_loss(LossInputs.of(batch, logprobs, token_mask, totals), config)
        output.loss.backward()
        yield relative_error(token_mask, published["keep"])
        yield relative_error(output.loss.detach(), published["loss"])
        yield relative_error(logprobs.grad, published["grad_logprobs"])


def check_knights_knaves_reward(case: Case) -> Iterator[float]:
    yield 0.0 if score(case["response"], case["solution"]).reward == case["score"] else float("inf")


FAMILIES: dict[str, Callable[[Case], Iterator[float]]] = {
    "grpo_advantage": check_grpo,
    "reinforce_plus_plus": check_reinforce_plus_plus,
    "advantage_reweighting": check_reweighting,
    "policy_loss": check_policy_loss,
    "kl": check_kl,
    "lopti": check_lopti,
    "knights_knaves_reward": check_knights_knaves_reward,
}


class Outcome(NamedTuple):
    """How a family compares."""

    compared: int  # cases; others are variants that are not offered here
    cases: int
    error: float  # the largest relative one


def compare(path: Path) -> dict[str, Outcome]:
    """The outcome of every family in the file."""
    vectors = json.loads(path.read_text(encoding="utf-8"))
    checks = {**FAMILIES, **update_rule_vectors.FAMILIES}
    unknown = set(vectors) - set(checks) - set(update_rule_vectors.NOT_OFFERED)
    assert not unknown, f"families without a check: {sorted(unknown)}"
    outcomes = {}
    for family, cases in vectors.items():
        errors = [list(checks[family](case)) for case in cases] if family in checks else []
        worst = max((max(of_case) for of_case in errors if of_case), default=0.0)
        outcomes[family] = Outcome(sum(map(bool, errors)), len(cases), worst)
    return outcomes


def main() -> int:
    worst = 0.0
    for path in map(Path, sys.argv[1:] or BUNDLED):
        for family, (compared, cases, error) in compare(path).items():
            verdict = "ok" if error <= TOLERANCE else "FAILED"
            reason = (
                f"not offered: {update_rule_vectors.NOT_OFFERED.get(family, 'another variant')}"
            )
            figures = f"largest relative error {error:.2e}   {verdict}" if compared else reason
            print(f"{family:30} {compared:3} of {cases:3} cases   {figures}")
            worst = max(worst, error)
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
