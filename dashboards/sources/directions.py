"""Decide whether larger or smaller values of a metric are better if nobody specified it."""

import re
from collections.abc import Sequence

from dashboards.sources.column_words import COMPUTE, COUNTERS, DURATIONS, MEMORY, parts_of, words_of
from dashboards.trial import Mode
from loptune.declared_metrics import METRIC_FAMILIES
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
    "truncated", "truncation", "truncations", "overlong",
)  # fmt: skip
# names of costs: smaller is better for a guard; for a score the direction would be ambiguous
_USED_WORDS = ("length", "lengths", "kl", *COUNTERS, *DURATIONS, *COMPUTE, *MEMORY)
# names of costs of reaching a goal, such as steps_to_90, and of mean ranks
_SMALLER_NAME = re.compile(
    r"(?:steps?|iterations?|iters?|epochs?|episodes?|samples?|frames?|tokens|time|seconds|hours)"
    r"[ _-]+(?:to|until|till)[ _-]|(?:avg|average|mean|median)[ _-]ranks?$"
)
# names of rates, such as train_samples_per_second and tokens/s; seconds_per_step is a cost
_RATE = re.compile(
    rf"(?<![a-z])(?:{'|'.join((*COUNTERS, 'flops'))})"
    r"(?:[ _-]per[ _-](?:s|sec|second|minute|hour|day)|/(?:s|sec))(?![a-z])"
)
_LARGER_WORDS = ("neg", "negative", "minus", "reduction", "improvement", "gain")
# quantities of which larger values are better
_LARGER_METRICS = (
    "acc", "accuracy", "reward", "rewards", "return", "returns", "score", "scores", "pass",
    "correct", "success", "f1", "auc", "auroc", "map", "iou", "miou", "dice", "bleu", "rouge", "em",
    "exact", "precision", "recall", "win", "wins", "psnr", "ssim", "r2",
)  # fmt: skip


def direction(score: str, mode: Mode | None, of_source: Mode | None) -> tuple[Mode, list[str]]:
    """Return whether larger or smaller scores are better, and a note if the source determined it.

    Raises:
        ConfigError: the direction is not specified, and the name of the score suggests that smaller
            is better.
    """
    if mode is not None:
        return mode, []
    if of_source is not None:
        verb, better = ("maximized", "larger") if of_source == "max" else ("minimized", "smaller")
        return of_source, [f"The search {verb} {score}, so {better} values are better."]
    if direction_by_name(score) == "min":
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
    return direction_by_name(metric, _USED_WORDS) or DEFAULT


def direction_by_name(metric: str, costs: Sequence[str] = ()) -> Mode | None:
    """Return whether larger or smaller values are better according to the name; None if the name
    does not show it. ``costs`` are further words for which smaller is better. Of the parts of a
    name such as ``val_loss/dataloader_idx_0``, the last one that names a quantity decides.
    """
    if _RATE.search(metric.lower()):
        return "max"
    for part in reversed(parts_of(_without_set(metric))):
        words = set(words_of(part))
        words |= {word.rstrip("0123456789") for word in words}
        if words.intersection(_LARGER_WORDS):
            return "max"
        if words.intersection((*_SMALLER_WORDS, *costs)) or _SMALLER_NAME.search(part.lower()):
            return "min"
        if words.intersection(_LARGER_METRICS):
            return "max"
    return None


def _without_set(metric: str) -> str:
    """Return the name of a metric of loptune's trainer without its evaluation set, whose name says
    nothing about the metric.
    """
    for family in METRIC_FAMILIES:
        if metric.startswith(family):
            return family.removesuffix("/")
    return metric
