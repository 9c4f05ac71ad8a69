"""Rules for training on the engine's log-probabilities."""

from collections.abc import Iterator

from trainer.config.algorithm import AlgorithmConfig
from trainer.config.optim import OptimConfig
from trainer.config.rollout import RolloutConfig


def engine_logprob_problems(algorithm: AlgorithmConfig, rollout: RolloutConfig, optim: OptimConfig) -> Iterator[str]:
    """Reasons why the engine's log-probabilities cannot be used as configured."""
    truncations = _truncations(rollout)
    if algorithm.engine_correction is not None and truncations:
        yield (
            "rollout.top_p, top_k and min_p renormalise the engine's probabilities over the tokens they keep: "
            "their ratio to the trainer's is no mismatch. Sample from all tokens, or set "
            "algorithm.engine_correction to null"
        )
    if optim.old_logprobs == "recompute":
        return
    if truncations:
        key = truncations[0]
        yield (
            f"optim.old_logprobs rollout and rollout.{key} {getattr(rollout, key):g}: the engine renormalises its "
            f"probabilities over the tokens it keeps, and they are not the policy's. Set rollout.{key} to "
            f"{1 if key == 'top_p' else 0}, or optim.old_logprobs to recompute"
        )
    if algorithm.engine_correction is not None and algorithm.engine_correction.level != "token":
        yield (
            "optim.old_logprobs rollout bounds the ratio of every token, as no forward before the update knows "
            "that of a completion: set algorithm.engine_correction.level to token"
        )
    if algorithm.needs_distributions:
        yield (
            f"algorithm.{algorithm.needs_distributions} needs the next-token distributions of before the update, "
            "which the engine does not give: set optim.old_logprobs to recompute"
        )


def lag_problems(algorithm: AlgorithmConfig, rollout: RolloutConfig, optim: OptimConfig) -> Iterator[str]:
    """Reasons why completions sampled one update ago cannot be trained on.

    They were drawn from ``mu``, the engine's distribution one update ago, so the gradient needs their weights
    ``pi / mu = (pi / pi_old) (pi_old / mu)``. The loss has the first ratio; the second is the engine correction's
    [arXiv:2110.00641, section 3.2], unless ``pi_old`` is ``mu`` itself, with `optim.old_logprobs` rollout.
    """
    if rollout.lag == 0:
        return
    if rollout.dynamic_sampling:
        yield (
            "rollout.lag 1 samples before the rewards are known that tell rollout.dynamic_sampling how many "
            "problems it lacks: set one of them to 0 or false"
        )
    for key in _truncations(rollout):
        yield (
            f"rollout.lag 1 corrects by the engine's probabilities, which rollout.{key} "
            f"{getattr(rollout, key):g} renormalises: set rollout.{key} to {1 if key == 'top_p' else 0}"
        )
    if optim.old_logprobs == "recompute" and algorithm.engine_correction is None:
        yield (
            "rollout.lag 1 trains on completions of the weights before the last update, which nothing "
            "corrects for: set algorithm.engine_correction.cap to 2, or optim.old_logprobs to rollout"
        )


def _truncations(rollout: RolloutConfig) -> list[str]:
    """Settings that restrict the engine to some of the tokens."""
    return [key for key, off in (("top_p", 1), ("top_k", 0), ("min_p", 0)) if getattr(rollout, key) != off]
