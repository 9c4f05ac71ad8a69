"""Whether larger or smaller scores are better, if the command does not say it."""

from dashboards.sources.roles import words_of
from dashboards.trial import Mode
from loptune.errors import ConfigError

DIRECTION = "direction"  # key of a table's attrs: what the source says of its score
DEFAULT: Mode = "max"
_SMALLER_WORDS = (
    "loss", "losses", "err", "error", "errors", "mse", "rmse", "mae", "mape", "nrmse", "nll",
    "perplexity", "ppl", "bpb", "bpc", "regret", "cost", "costs", "fid", "kid", "wer", "cer", "ter",
    "eer", "mcd", "lpips", "latency", "runtime", "brier", "ece", "logloss", "deviance", "hausdorff",
    "chamfer", "crps", "misclassification", "collisions", "violations", "crossentropy", "rmsle",
    "perplexities", "entropy", "distance", "residual", "discrepancy",
)  # fmt: skip
# of what a run uses, which is better if there is less of it; as a score it would be ambiguous
_USED_WORDS = (
    "length", "lengths", "token", "tokens", "second", "seconds", "time", "hours", "memory", "flops",
    "kl", "failures", "timeouts", "repetition", "repetitions",
)  # fmt: skip
_LARGER_WORDS = ("neg", "negative", "minus", "reduction", "improvement", "gain")


def direction(score: str, mode: Mode | None, of_source: Mode | None) -> tuple[Mode, list[str]]:
    """Return whether larger or smaller scores are better, and a note if the source decides it.

    Raises:
        ConfigError: nobody says so, and the name of the score speaks for smaller.
    """
    if mode is not None:
        return mode, []
    if of_source is not None:
        verb, better = ("maximized", "larger") if of_source == "max" else ("minimized", "smaller")
        return of_source, [f"The search {verb} {score}, so {better} values are better."]
    words = {word.rstrip("0123456789") for word in words_of(score)}
    if words.intersection(_SMALLER_WORDS) and not words.intersection(_LARGER_WORDS):
        raise ConfigError(
            f"smaller values of {score} are usually better, but --mode does not say so",
            "--mode",
            "add --mode min; or --mode max if larger values are better",
            code="which-direction",
        )
    return DEFAULT, []


def guard_direction(metric: str, mode: Mode | None) -> Mode:
    """Return whether larger or smaller values of a guarded metric are better: as given, else by its
    name.
    """
    if mode is not None:
        return mode
    words = {word.rstrip("0123456789") for word in words_of(metric)}
    if words.intersection(_LARGER_WORDS):
        return DEFAULT
    return "min" if words.intersection((*_SMALLER_WORDS, *_USED_WORDS)) else DEFAULT
