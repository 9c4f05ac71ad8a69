"""Holds the update rules against numbers that other trainers' own code computed.

Each check yields relative errors; for a variant that is not offered here it yields nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.invariants import rules  # noqa: F401  finds the rules that stand beside the package
from tests.trainer.algorithm.batches import batch_of as masked_batch
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.loss import token_weights, update_loss
from trainer.algorithm.passes import high_entropy_tokens
from trainer.algorithm.rollout_correction import importance_weights
from trainer.config.algorithm import AlgorithmConfig, RolloutCorrection
from trainer.rollouts.overlong import overlong_penalty
from trainer.rules.groups import has_varied_rewards, is_varied
from trainer.rules.interface import LossInputs, UpdateTotals
from trainer.rules.kinds import LOSS
from trainer.rules.papers.covariance import covariances, drawn
from trainer.rules.selection import largest
from trainer.types import TrainBatch

Case = dict[str, Any]

NO_CLIP = 1e9  # a dual clip that never applies


def alone(items: list[Any]) -> list[Any]:
    return items


def relative_error(ours: Tensor | float, published: Any) -> float:
    """Largest |ours - published|, relative to the largest |published| of the field (at
    least 1e-3).
    """
    ours = torch.as_tensor(ours).double()
    published = torch.as_tensor(published).double()
    assert ours.shape == published.shape, (
        f"shape {tuple(ours.shape)} is not {tuple(published.shape)}"
    )
    scale = max(float(published.abs().max()), 1e-3)
    return float((ours - published).abs().max()) / scale


def batch_of(inputs: Case) -> TrainBatch:
    """A scored batch in float32 from the fields that a case has; without ``old_logprobs`` on the
    engine's.
    """
    if "old_logprobs" not in inputs and "rollout_logprobs" in inputs:
        inputs = {**inputs, "old_logprobs": inputs["rollout_logprobs"]}
        return replace(batch_of(inputs), rollout_logprobs=None)
    mask = torch.tensor(inputs["completion_mask"], dtype=torch.float32)

    def field(name: str) -> Tensor:
        return (
            torch.tensor(inputs[name], dtype=torch.float32)
            if name in inputs
            else torch.zeros_like(mask)
        )

    return masked_batch(
        mask,
        rollout_logprobs=field("rollout_logprobs"),
        old_logprobs=field("old_logprobs"),
        ref_logprobs=field("ref_logprobs") if "ref_logprobs" in inputs else None,
        entropies=field("entropies"),
        advantages=field("advantages"),
        rewards=torch.tensor(inputs.get("rewards", [0.0] * len(mask)), dtype=torch.float32),
        group_ids=torch.tensor(inputs.get("group_ids", [0] * len(mask))),
    )


def check_advantages(case: Case, **settings: Any) -> Iterator[float]:
    ours = estimate_advantages(batch_of(case["inputs"]), AlgorithmConfig(**settings)).advantages
    yield relative_error(ours, case["expected"]["advantages"])


def check_loss(case: Case, chosen: Tensor | None = None, **settings: Any) -> Iterator[float]:
    parameters = case["parameters"]
    expected = case["expected"]
    batch = batch_of(case["inputs"])
    batch = replace(batch, chosen=chosen)
    config = AlgorithmConfig(
        **{
            "kl_coef": parameters.get("kl_coef", 0.0),
            "loss_aggregation": parameters["loss_aggregation"],
            **settings,
        }
    )
    logprobs = torch.tensor(case["inputs"]["logprobs"], requires_grad=True)
    mask = batch.completion_mask
    token_mask = mask
    entropies = None
    if "current_entropies" in case["inputs"]:
        entropies = torch.tensor(case["inputs"]["current_entropies"])
    if "top_entropy" in parameters:
        token_mask = high_entropy_tokens(batch, parameters["top_entropy"], alone)
        yield relative_error(token_mask, expected["mask"])
    totals = UpdateTotals(float(mask.sum()), len(mask), parameters.get("max_new_tokens", 1))
    inputs = LossInputs.of(batch, logprobs, token_mask, totals, entropies)
    output = update_loss(inputs, config)
    output.loss.backward()
    yield relative_error(output.loss.detach(), expected["loss"])
    yield relative_error(logprobs.grad, expected["grad_logprobs"])


def check_gdpo(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    inputs = case["inputs"]
    # TRL's and the paper's
    if parameters["final"].endswith("(unbiased std over completions + 1e-4)"):
        weights = {str(index): weight for index, weight in enumerate(parameters["reward_weights"])}
        parts = [
            {
                name: weight * value
                for (name, weight), value in zip(weights.items(), values, strict=True)
            }
            for values in inputs["reward_components"]
        ]
        batch = replace(batch_of(inputs), reward_parts=parts, part_weights=weights)
        ours = estimate_advantages(batch, AlgorithmConfig(advantage="gdpo")).advantages
        yield relative_error(ours, case["expected"]["advantages"])


def check_rloo(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    if parameters.get("singleton") == "raw_reward" and parameters["scale"] == "none":
        yield from check_advantages(case, advantage="rloo")


def check_dr_grpo_advantage(case: Case) -> Iterator[float]:
    yield from check_advantages(case, advantage="dr_grpo")


def check_group_std(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    if (parameters["baseline"], parameters["std"], parameters["eps"]) == (
        "group_mean",
        "unbiased",
        1e-6,
    ):
        yield from check_advantages(case, advantage="grpo")


def check_maxrl(case: Case) -> Iterator[float]:
    if min(case["inputs"]["rewards"]) >= 0:  # others are refused
        yield from check_advantages(case, advantage="maxrl")


def check_reinforce_plus_plus_baseline(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    summed = parameters.get("kl_placement", "").startswith("summed into the sequence reward")
    if parameters["var"] == "unbiased" and ("kl_coef" not in parameters or summed):
        kl = (
            {"kl_coef": parameters["kl_coef"], "kl_placement": "reward"}
            if summed
            else {"kl_coef": 0.0}
        )
        yield from check_advantages(case, advantage="reinforce_baseline", **kl)


def check_clipped(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    if case["source"]["project"] == "TRL" and "log-ratio of 25" in case["name"]:
        return  # TRL does not bound the log-ratio; verl, OpenRLHF, SkyRL and this trainer do
    if len({len(rows) for rows in parameters.get("micro_batches", [[]])}) > 1:
        return  # TRL's constant denominator depends on the sizes of micro-batches
    yield from check_loss(
        case,
        loss={
            "clip_ratio_low": parameters["clip_ratio_low"],
            "clip_ratio_high": parameters["clip_ratio_high"],
            "dual_clip": parameters.get("dual_clip") or NO_CLIP,
        },
    )


def check_gspo(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    if parameters["loss_aggregation"] == "seq_mean_token_mean":
        clip = {name: parameters[name] for name in ("clip_ratio_low", "clip_ratio_high")}
        yield from check_loss(case, loss={"name": "gspo", **clip})


def check_cispo(case: Case) -> Iterator[float]:
    low = case["parameters"]["ratio_cap_low"]
    high = case["parameters"]["ratio_cap_high"]
    yield from check_loss(
        case, loss={"name": "cispo", "clip_ratio_low": 1 - low, "clip_ratio_high": high - 1}
    )


def check_dppo(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    assert parameters["threshold_low"] == parameters["threshold_high"]
    loss = {"binary_tv": "dppo_tv", "binary_kl": "dppo_kl"}[parameters["divergence"]]
    yield from check_loss(case, loss={"name": loss, "threshold": parameters["threshold_low"]})


def check_sapo(case: Case) -> Iterator[float]:
    tau = {
        "tau_positive": case["parameters"]["tau_pos"],
        "tau_negative": case["parameters"]["tau_neg"],
    }
    yield from check_loss(case, loss={"name": "sapo", **tau})


def check_dppo_with_penalty(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    if parameters["divergence"] == "binary_tv":  # not where both directions are held back
        coef = parameters["squared_log_ratio_coef"]
        loss = {"name": "dppo_tv", "threshold": parameters["threshold_low"]}
        _, gradient = check_loss(case, loss=loss, log_ratio_coef=coef)
        yield gradient  # prime-rl differentiates -A r; the value of -sg(r) A logprob is another


def check_rollout_anchored(case: Case) -> Iterator[float]:
    low = case["parameters"]["clip_ratio_low"]
    high = case["parameters"]["clip_ratio_high"]
    mask = {"rule": "mask", "floor": 1 - low, "cap": 1 + high}
    yield from check_loss(case, loss="cispo", rollout_correction=mask)


def check_dro(case: Case) -> Iterator[float]:
    coef = case["parameters"]["beta"] / 2
    yield from check_loss(
        case,
        loss={"name": "cispo", "clip_ratio_low": 0.0, "clip_ratio_high": 0.0},
        log_ratio_coef=coef,
    )


def check_luspo(case: Case) -> Iterator[float]:
    clip = {name: case["parameters"][name] for name in ("clip_ratio_low", "clip_ratio_high")}
    yield from check_loss(case, loss={"name": "gspo", **clip})


def check_gmpo(case: Case) -> Iterator[float]:
    low, high = (case["parameters"][f"log_ratio_clip_{side}"] for side in ("low", "high"))
    yield from check_loss(
        case, loss={"name": "gmpo", "clip_low": low, "clip_high": high}, loss_aggregation="auto"
    )


def covariance_case(case: Case) -> tuple[TrainBatch, Tensor]:
    """The batch of a case, and its covariances by the current log-probabilities, as verl takes
    them.
    """
    batch = batch_of(case["inputs"])
    logprobs = torch.tensor(case["inputs"]["logprobs"])
    mask = batch.completion_mask
    return batch, covariances(batch.advantages, logprobs, mask, alone)


def check_clip_cov(case: Case) -> Iterator[float]:
    parameters, (batch, covariance) = case["parameters"], covariance_case(case)
    clip = {name: parameters[name] for name in ("clip_ratio_low", "clip_ratio_high")}
    inputs = LossInputs.of(
        batch, torch.tensor(case["inputs"]["logprobs"]), batch.completion_mask, UpdateTotals(1, 1)
    )
    clipped = LOSS.read({"name": "clip_cov", **clip})(inputs).clipped
    candidates = (
        (covariance > parameters["clip_cov_lb"])
        & (covariance < parameters["clip_cov_ub"])
        & ~clipped
    )
    count = max(1, int(parameters["clip_cov_ratio"] * batch.completion_mask.sum()))
    chosen = drawn(candidates, count, alone, None)
    yield relative_error(batch.completion_mask * ~chosen, case["expected"]["mask"])
    yield from check_loss(case, chosen, loss={"name": "clip_cov", **clip})


def check_kl_cov(case: Case) -> Iterator[float]:
    parameters, (batch, covariance) = case["parameters"], covariance_case(case)
    mask = batch.completion_mask
    chosen = largest(
        covariance, mask.bool(), max(1, int(parameters["kl_cov_ratio"] * mask.sum())), alone
    )
    chosen = chosen & (covariance != 0)
    yield relative_error(chosen.float(), case["expected"]["mask"])
    yield from check_loss(case, chosen, loss={"name": "kl_cov", "coef": parameters["ppo_kl_coef"]})


def check_kl_in_loss(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    if "kl_gradient" in parameters or "sg(policy)" in parameters.get("kl_weight", ""):
        return  # other gradients than the penalty's own
    bound = parameters.get("log_ratio_clamp", 20.0 if "value_clamp" in parameters else None)
    yield from check_loss(
        case,
        kl_estimator=parameters["kl_estimator"],
        kl_log_ratio_clamp=bound,
        kl_placement="loss",
        kl_importance_ratio="kl_weight" in parameters,
    )


def check_vespo(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    shape = {
        "k_positive": parameters["k_pos"],
        "lambda_positive": parameters["lambda_pos"],
        "k_negative": parameters["k_neg"],
        "lambda_negative": parameters["lambda_neg"],
    }
    yield from check_loss(case, loss={"name": "vespo", **shape})


def check_ipo(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    yield from check_loss(
        case,
        loss={"name": "ipo", "threshold": parameters["threshold"]},
        log_ratio_coef=parameters["squared_log_ratio_coef"],
    )


def check_off_policy_mask(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    clip = {name: parameters[name] for name in ("clip_ratio_low", "clip_ratio_high")}
    yield from check_loss(
        case,
        loss={"name": "clipped", "dual_clip": NO_CLIP, **clip},
        off_policy_threshold=parameters["off_policy_threshold"],
    )


def check_optimal_token_baseline(case: Case) -> Iterator[float]:
    inputs = case["inputs"]
    mask = torch.tensor(inputs["completion_mask"])
    squares = torch.tensor(inputs["sum_squared_probabilities"])
    norms = (1 - 2 * torch.tensor(inputs["old_logprobs"]).exp() + squares).clamp(min=0).sqrt()
    batch = replace(batch_of(inputs), gradient_norms=norms * mask)
    config = AlgorithmConfig(advantage="optimal_token_baseline")
    ours = estimate_advantages(batch, config).advantages
    has_spread = is_varied(batch.rewards, batch.group_ids)
    # in a group with equal rewards verl trains on the tail that one completion has alone
    expected = torch.tensor(case["expected"]["advantages"]) * has_spread[:, None]
    yield relative_error(ours, expected)


def check_ce_gppo(case: Case) -> Iterator[float]:
    names = ("clip_ratio_low", "clip_ratio_high", "dual_clip", "beta_low", "beta_high")
    settings = {name: case["parameters"][name] for name in names}
    yield from check_loss(case, loss={"name": "ce_gppo:CeGppo", **settings})


def check_entropy_ratio(case: Case) -> Iterator[float]:
    names = ("clip_ratio_low", "clip_ratio_high", "dual_clip", "low", "high")
    settings = {name: case["parameters"][name] for name in names}
    _, gradient = check_loss(case, loss={"name": "entropy_ratio:EntropyRatio", **settings})
    yield gradient  # the authors' value includes dropped tokens, without their gradient


def check_token_weights(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    aggregation = parameters["loss_aggregation"]
    if aggregation != "prompt_mean":
        mask = torch.tensor(case["inputs"]["completion_mask"], dtype=torch.float32)
        totals = UpdateTotals(float(mask.sum()), len(mask), parameters.get("max_new_tokens", 1))
        yield relative_error(
            token_weights(mask, aggregation, totals), case["expected"]["token_weights"]
        )


def check_engine_weights(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    batch = batch_of(case["inputs"])
    config = RolloutCorrection(
        level=parameters["level"].removeprefix("sequence_"),
        rule=parameters["rule"],
        cap=parameters.get("importance_sampling_cap") or parameters["cap"],
        floor=parameters.get("floor", 0.0),
    )
    ours = importance_weights(
        batch.old_logprobs, batch.rollout_logprobs, batch.completion_mask, [config]
    )
    mask = batch.completion_mask
    yield relative_error(
        ours.weights * mask, torch.tensor(case["expected"]["importance_weights"]) * mask
    )


def check_overlong(case: Case) -> Iterator[float]:
    parameters = case["parameters"]
    inputs = case["inputs"]
    if parameters.get("capped"):
        limit = parameters["max_new_tokens"]
        buffer = parameters["overlong_buffer"]
        ours = [
            reward - parameters["overlong_penalty"] * overlong_penalty(length, limit, buffer)
            for reward, length in zip(inputs["rewards"], inputs["lengths"], strict=True)
        ]
        yield relative_error(torch.tensor(ours), case["expected"]["rewards"])


def check_dynamic_sampling(case: Case) -> Iterator[float]:
    if not case["parameters"]["keep"].startswith("group of one, or spread"):
        return
    rewards = case["inputs"]["rewards"]
    ids = case["inputs"]["group_ids"]
    groups = {i: [r for r, j in zip(rewards, ids, strict=True) if j == i] for i in ids}
    for i, published in zip(ids, case["expected"]["mask"], strict=True):
        # SkyRL drops spreads up to 1e-6, and here they have advantages
        if not 0 < max(groups[i]) - min(groups[i]) <= 1e-6:
            yield abs(float(has_varied_rewards(groups[i])) - published)


FAMILIES: dict[str, Callable[[Case], Iterator[float]]] = {
    "rloo_advantage": check_rloo,
    "dr_grpo_advantage": check_dr_grpo_advantage,
    "dr_grpo_loss": check_clipped,
    "group_std_advantage": check_group_std,
    "maxrl_advantage": check_maxrl,
    "gdpo_advantage": check_gdpo,
    "reinforce_plus_plus_baseline": check_reinforce_plus_plus_baseline,
    "grpo_loss": check_clipped,
    "dapo_loss": check_clipped,
    "two_sided_clip": check_clipped,
    "gspo_loss": check_gspo,
    "cispo_loss": check_cispo,
    "dppo_loss": check_dppo,
    "dppo_kl_loss": check_dppo_with_penalty,
    "sapo_loss": check_sapo,
    "gmpo_loss": check_gmpo,
    "luspo_loss": check_luspo,
    "dro_loss": check_dro,
    "clip_cov_loss": check_clip_cov,
    "kl_cov_loss": check_kl_cov,
    "rollout_anchored_mask": check_rollout_anchored,
    "high_entropy_mask": check_clipped,
    "token_weights": check_token_weights,
    "kl_in_loss": check_kl_in_loss,
    "engine_truncation": check_engine_weights,
    "engine_masking": check_engine_weights,
    "overlong_punishment": check_overlong,
    "dynamic_sampling": check_dynamic_sampling,
    "vespo_loss": check_vespo,
    "ipo_loss": check_ipo,
    "off_policy_sequence_mask": check_off_policy_mask,
    "optimal_token_baseline": check_optimal_token_baseline,
    "ce_gppo_loss": check_ce_gppo,
    "entropy_ratio_clip_loss": check_entropy_ratio,
}

# Families of other trainers that are not offered here, and why.
NOT_OFFERED = {
    "engine_rejection": "no user; TRL and verl users truncate or mask",
    "rloo_sequence_loss": "one ratio, the product over the completion: AR and Lopti lose their "
    "grip; no user",
    "bnpo_loss": "the loss would depend on how a batch is cut into micro-batches",
    "token_weights_micro_batches": "the loss would depend on how a batch is cut into micro-batches",
    "other_baselines": "no user",
    "on_policy_distillation": "needs a teacher",
}
