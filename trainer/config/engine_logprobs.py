"""Validation of settings that use the engine's log-probabilities."""

from collections.abc import Iterator

from pydantic_core import PydanticCustomError

from loptune.section import refusal
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.optim import OptimConfig
from trainer.config.rollout import RolloutConfig


def engine_logprob_problems(
    algorithm: AlgorithmConfig, rollout: RolloutConfig, optim: OptimConfig
) -> Iterator[PydanticCustomError]:
    """Yield an error for each setting that the engine's log-probabilities cannot support."""
    truncations = _truncations(rollout)
    if algorithm.rollout_corrections and truncations:
        yield refusal(
            "correction-of-truncation",
            "rollout.top_p, top_k and min_p renormalize the engine's probabilities over the "
            "kept tokens, so rollout_correction would correct the truncation, not a mismatch: "
            "turn them off, or set algorithm.rollout_correction to null",
        )
    if optim.old_logprobs == "recompute":
        return
    if truncations:
        key = truncations[0]
        off = 1 if key == "top_p" else 0
        yield refusal(
            "engine-logprobs-truncated",
            f"optim.old_logprobs is rollout and rollout.{key} is {getattr(rollout, key):g}: "
            "the engine renormalizes its probabilities over the kept tokens, so they are not "
            f"the policy's. Set rollout.{key} to {off}, or "
            "optim.old_logprobs to recompute",
        )
    if any(correction.level != "token" for correction in algorithm.rollout_corrections):
        yield refusal(
            "correction-not-by-token",
            "optim.old_logprobs is rollout: without a forward pass before the update the "
            "ratio of a completion is unknown, so only token-level correction works: set "
            "algorithm.rollout_correction.level to token",
        )
    if algorithm.off_policy_threshold is not None and algorithm.isolates:
        yield refusal(
            "off-policy-threshold-with-lopti",
            "algorithm.off_policy_threshold compares the engine with the policy before Lopti's "
            "passes, which optim.old_logprobs=rollout does not compute: set optim.old_logprobs to "
            "recompute",
        )
    if algorithm.needs_distributions:
        yield refusal(
            "engine-without-distributions",
            f"algorithm.{algorithm.needs_distributions} needs next-token distributions from "
            "before the update, which the engine does not return: set optim.old_logprobs to "
            "recompute",
        )


def _truncations(rollout: RolloutConfig) -> list[str]:
    """Return the names of active truncation settings: top_p, top_k, min_p."""
    return [
        key
        for key, off in (("top_p", 1), ("top_k", 0), ("min_p", 0))
        if getattr(rollout, key) != off
    ]
