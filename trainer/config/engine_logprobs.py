"""Rules for training on the engine's log-probabilities."""

from collections.abc import Iterator

from trainer.config.algorithm import AlgorithmConfig
from trainer.config.optim import OptimConfig
from trainer.config.rollout import RolloutConfig


def engine_logprob_problems(
    algorithm: AlgorithmConfig, rollout: RolloutConfig, optim: OptimConfig
) -> Iterator[str]:
    """Yield reasons why the engine's log-probabilities cannot be used as configured."""
    truncations = _truncations(rollout)
    if algorithm.engine_correction is not None and truncations:
        yield (
            "rollout.top_p, top_k and min_p renormalize the engine's probabilities over the tokens "
            "they keep: their ratio to the trainer's is no mismatch. Sample from all tokens, or "
            "set algorithm.engine_correction to null"
        )
    if optim.old_logprobs == "recompute":
        return
    if truncations:
        key = truncations[0]
        yield (
            f"optim.old_logprobs rollout and rollout.{key} {getattr(rollout, key):g}: the engine "
            "renormalizes its probabilities over the tokens it keeps, and they are not the "
            f"policy's. Set rollout.{key} to {1 if key == 'top_p' else 0}, or optim.old_logprobs "
            "to recompute"
        )
    if algorithm.engine_correction is not None and algorithm.engine_correction.level != "token":
        yield (
            "optim.old_logprobs rollout bounds the ratio of every token, as no forward before the "
            "update knows that of a completion: set algorithm.engine_correction.level to token"
        )
    if algorithm.needs_distributions:
        yield (
            f"algorithm.{algorithm.needs_distributions} needs the next-token distributions of "
            "before the update, which the engine does not give: set optim.old_logprobs to recompute"
        )


def _truncations(rollout: RolloutConfig) -> list[str]:
    """Return settings that restrict the engine to some of the tokens."""
    return [
        key
        for key, off in (("top_p", 1), ("top_k", 0), ("min_p", 0))
        if getattr(rollout, key) != off
    ]
