"""Decide whether larger or smaller scores are better if the command line does not specify it."""

import re

from dashboards.sources.roles import words_of
from dashboards.trial import Mode
from loptune.errors import ConfigError

DIRECTION = "direction"  # key in a table's attrs for the direction that the source declares
DEFAULT: Mode = "max"
_SMALLER_WORDS = (
    "loss", "losses", "err", "error", "errors", "mse", "rmse", "mae", "mape", "nrmse", "nll",
    "perplexity", "ppl", "bpb", "bpc", "regret", "cost", "costs", "fid", "kid", "wer", "cer", "ter",
    "eer", "mcd", "lpips", "latency", "runtime", "brier", "ece", "logloss", "deviance", "hausdorff",
    "chamfer", "crps", "misclassification", "collisions", "violations", "crossentropy", "rmsle",
    "perplexities", "entropy", "distance", "residual", "discrepancy", "toxicity", "hallucination",
    "hallucinations", "forgetting", "gap", "divergence", "delay", "incorrect",
    "wrong", "failure", "failures", "crashes", "timeouts", "refusals", "repetition", "repetitions",
)  # fmt: skip
# names of costs: smaller is better for a guard; for a score the direction would be ambiguous
_USED_WORDS = (
    "length", "lengths", "token", "tokens", "second", "seconds", "time", "hours", "memory", "flops",
    "kl",
)  # fmt: skip
# what it takes to reach a goal, such as steps_to_90; and a mean rank
_SMALLER_NAME = re.compile(
    r"(?:steps?|iterations?|iters?|epochs?|episodes?|samples?|frames?|tokens|time|seconds|hours)"
    r"[ _-]+(?:to|until|till)[ _-]|(?:avg|average|mean|median)[ _-]ranks?$"
)
_LARGER_WORDS = ("neg", "negative", "minus", "reduction", "improvement", "gain")


def direction(score: str, mode: Mode | None, of_source: Mode | None) -> tuple[Mode, list[str]]:
    """Return whether larger or smaller scores are better, and a note if the source determined it.

    Raises:
        ConfigError: the direction is not specified, and the name of the score suggests smaller.
    """
    if mode is not None:
        return mode, []
    if of_source is not None:
        verb, better = ("maximized", "larger") if of_source == "max" else ("minimized", "smaller")
        return of_source, [f"The search {verb} {score}, so {better} values are better."]
    words = {word.rstrip("0123456789") for word in words_of(score)}
    smaller = words.intersection(_SMALLER_WORDS) or _SMALLER_NAME.search(score.lower())
    if smaller and not words.intersection(_LARGER_WORDS):
        raise ConfigError(
            f"smaller values of {score} are usually better, but --mode is not set",
            "--mode",
            "add --mode min, or --mode max if larger values are better",
            code="which-direction",
        )
    return DEFAULT, []


def usual_direction(metric: str, mode: Mode | None) -> Mode:
    """Return whether larger or smaller values of a metric are better: as specified, or else
    inferred from its name.
    """
    if mode is not None:
        return mode
    words = {word.rstrip("0123456789") for word in words_of(metric)}
    if words.intersection(_LARGER_WORDS):
        return DEFAULT
    return "min" if words.intersection((*_SMALLER_WORDS, *_USED_WORDS)) else DEFAULT
