"""Decide whether larger or smaller values of a metric are better if nobody specified it.

A rate, such as ``tokens_per_second``, should be large. Any other name is read part by part
(``eval/loss/mean``), starting with the last part, until a part reveals a direction. Within a part,
the first of these rules that applies decides (of rules 1 and 2, the one whose word comes first):

1. A word that reverses what precedes it: ``cost_reduction``, ``accuracy_drop``.
2. A negation, which reverses what follows it: ``neg_mean_squared_error``,
   ``negative_log_likelihood``.
3. A fixed expression: ``explained_variance``, ``false_negative_rate``, ``steps_to_90``.
4. A spread, or another word that leaves the direction open: ``reward_std``, ``logps/rejected``.
5. A quantity that should be small: ``loss``, ``brier_score``.
6. A length, a time, or the use of resources: smaller is better for a guard, and as a score it is
   unclear, because the length of an episode may be the goal.
7. A quantity that should be large: ``accuracy``, ``reward``.
8. A count, such as ``tokens``: treated like the quantities of rule 6.

The direction is *unclear* if a name has words of these kinds that do not settle it (``reward_std``,
``negative_recall``). It must then be specified. A name without any of these words (``my_metric``)
gets the default, and every result states the direction.
"""

import re
from collections.abc import Collection, Sequence
from typing import Literal

from dashboards.sources.column_words import COMPUTE, COUNTERS, DURATIONS, MEMORY, parts_of, words_of
from dashboards.trial import Mode
from loptune.declared_metrics import METRIC_FAMILIES
from loptune.errors import ConfigError

DIRECTION = "direction"  # key in a table's attrs for the direction that the source declares
DEFAULT: Mode = "max"
ADD_MODE = "add --mode min, or --mode max if larger values are better"  # for the option --mode
Reading = Mode | Literal["unclear"]  # what the name of a metric says about its direction

_SMALLER_WORDS = (
    "loss", "losses", "err", "error", "errors", "mse", "rmse", "mae", "mape", "nrmse", "nll",
    "perplexity", "ppl", "bpb", "bpc", "regret", "cost", "costs", "fid", "kid", "wer", "cer", "ter",
    "eer", "mcd", "lpips", "latency", "runtime", "brier", "ece", "logloss", "deviance", "hausdorff",
    "chamfer", "crps", "misclassification", "collisions", "violations", "crossentropy", "rmsle",
    "perplexities", "distance", "residual", "discrepancy", "toxicity", "hallucination",
    "hallucinations", "forgetting", "gap", "divergence", "delay", "incorrect",
    "wrong", "failure", "failures", "crashes", "timeouts", "refusals", "repetition", "repetitions",
    "truncated", "truncation", "truncations", "overlong", "merror", "mlogloss", "nloglik", "smape",
    "mase", "hinge", "logcosh", "kldiv", "degradation", "miss", "misses", "fpr", "fnr", "bpt",
)  # fmt: skip
_COST_WORDS = ("length", "lengths", "kl", *DURATIONS, *COMPUTE, *MEMORY)
# names of rates, such as train_samples_per_second and tokens/s; seconds_per_step is a cost
_RATE = re.compile(
    rf"(?<![a-z])(?:{'|'.join((*COUNTERS, 'flops'))})"
    r"(?:[ _-]per[ _-](?:s|sec|second|minute|hour|day)|/(?:s|sec))(?![a-z])"
)
# quantities of which larger values are better
_LARGER_WORDS = (
    "acc", "accuracy", "accuracies", "reward", "rewards", "rew", "return", "returns", "score",
    "scores", "pass", "passed", "correct", "correctness", "success", "solved", "f1", "fbeta", "auc",
    "auroc", "aucpr", "aupr", "ap", "map", "ndcg", "mrr", "iou", "miou", "dice", "jaccard", "bleu",
    "sacrebleu", "bleurt", "rouge", "meteor", "chrf", "sari", "bertscore", "em", "exact",
    "precision", "recall", "sensitivity", "specificity", "win", "wins", "winrate", "elo", "margin",
    "margins", "psnr", "ssim", "r2", "d2", "mcc", "kappa", "correlation", "pearsonr", "spearmanr",
    "similarity", "likelihood", "loglikelihood", "elbo", "throughput", "fps", "mfu", "speedup",
    "tpr", "tnr", "ppv", "npv",
)  # fmt: skip
# words that leave the direction open, whatever else the name says
_UNCLEAR_WORDS = (
    "std", "stdev", "stddev", "sd", "stderr", "sem", "var", "variance", "deviation", "iqr",
    "spread", "entropy", "rejected", "not", "non",
)  # fmt: skip
_NEGATIONS = ("neg", "negative", "negated", "minus", "inverse")
_REVERSALS = ("reduction", "reductions", "savings", "saved", "drop")
_COUNTED = "steps?|iterations?|iters?|epochs?|episodes?|samples?|frames?|tokens|time|seconds|hours"
# fixed expressions, searched in a name's words joined by spaces; the first match decides
_EXPRESSIONS: tuple[tuple[str, Reading], ...] = (
    ("(?:improvement|gain)s?$", "max"),
    ("explained var(?:iance)?|^d2|win loss|reciprocal rank|io u$", "max"),
    ("true (?:positive|negative)|(?:positive|negative) predictive value", "max"),
    ("false (?:positive|negative|discovery|omission|alarm|accept|reject)", "min"),
    ("cross entropy|log cosh|(?:bits|nats) per (?:byte|char|dim|token|word)", "min"),
    (f"(?:{_COUNTED}) (?:to|until|till) ", "min"),  # costs of reaching a goal
    ("(?:avg|average|mean|median) ranks?$|rank test score$", "min"),
    ("standard error", "unclear"),
)
_OPPOSITE: dict[Reading, Reading] = {"max": "min", "min": "max", "unclear": "unclear"}


def direction(score: str, mode: Mode | None, of_source: Mode | None) -> tuple[Mode, list[str]]:
    """Return whether larger or smaller scores are better, and a note if the source determined it.
    Larger is better if nothing specifies the direction and the name does not suggest another one.

    Raises:
        ConfigError: the direction is not specified, and the name of the score suggests that smaller
            is better, or is unclear.
    """
    if mode is not None:
        return mode, []
    if of_source is not None:
        verb, better = ("maximized", "larger") if of_source == "max" else ("minimized", "smaller")
        return of_source, [f"The search {verb} {score}, so {better} values are better."]
    reading = read_direction(score)
    if reading == "unclear":
        raise _unclear(score, "--mode", ADD_MODE)
    if reading == "min":
        raise ConfigError(
            f"smaller values of {score} are usually better, but --mode is not set",
            "--mode",
            ADD_MODE,
            code="which-direction",
        )
    return DEFAULT, []


def usual_direction(metric: str, mode: Mode | None, where: str, fix: str) -> Mode:
    """Return whether larger or smaller values of a metric are better: as specified, or else
    inferred from its name. For costs, such as lengths and times, smaller is better. If the name has
    no known word, larger is better.

    Args:
        metric: the name.
        mode: the direction, if it is specified.
        where: the option or key to name in an error.
        fix: how to specify the direction there.

    Raises:
        ConfigError: the direction is not specified, and the name is unclear.
    """
    if mode is not None:
        return mode
    reading = read_direction(metric, costs_are_smaller=True)
    if reading == "unclear":
        raise _unclear(metric, where, fix)
    return reading or DEFAULT


def _unclear(metric: str, where: str, fix: str) -> ConfigError:
    return ConfigError(
        f"the name {metric} does not show whether larger or smaller values are better",
        where,
        fix,
        code="which-direction",
    )


def direction_by_name(metric: str) -> Mode | None:
    """Return whether larger or smaller values are better according to the name; None if the name
    does not show it.
    """
    reading = read_direction(metric)
    return None if reading == "unclear" else reading


def read_direction(metric: str, *, costs_are_smaller: bool = False) -> Reading | None:
    """Read the direction from the name of a metric; None if the name has no known word.

    Args:
        metric: the name, such as ``val_loss/dataloader_idx_0``.
        costs_are_smaller: whether smaller costs are better, as for a guard. The direction of a
            score such as ``episode_length`` is unclear.
    """
    if _RATE.search(metric.lower()):
        return "max"
    for part in reversed(parts_of(_without_set(metric))):
        reading = _read(words_of(part), costs="min" if costs_are_smaller else "unclear")
        if reading is not None:
            return reading
    return None


def _read(words: Sequence[str], costs: Reading) -> Reading | None:
    """Read the direction from the words of one part, by the rules of the module's docstring."""
    for index, word in enumerate(words):
        before = words[:index]
        after = words[index + 1 :]
        if word in _REVERSALS:
            return _reversed(word, before, after)
        if word in _NEGATIONS and not _is_class(before, after):
            return _negated(word, after, costs)
    for expression, reading in _EXPRESSIONS:
        if re.search(rf"\b(?:{expression})", " ".join(words)):
            return reading
    if "per" in words[1:]:  # errors_per_second are errors
        words = words[: words.index("per", 1)]
    by_words: tuple[tuple[Collection[str], Reading], ...] = (
        (_UNCLEAR_WORDS, "unclear"),
        (_SMALLER_WORDS, "min"),
        (_COST_WORDS, costs),
        (_LARGER_WORDS, "max"),
        (COUNTERS, costs),
    )
    return next((reading for known, reading in by_words if _has(words, known)), None)


def _reversed(word: str, before: Sequence[str], after: Sequence[str]) -> Reading | None:
    """Return the opposite of the direction of the words before a reversal. If they have none, a
    drop is unclear. For other reversals, such as a reduction, the words after it decide; without a
    direction there, larger is better.
    """
    reading = _read(before, costs="min")
    if reading is not None:
        return _OPPOSITE[reading]
    if word == "drop":
        return "unclear"
    return _read(after, costs="min") or "max"


def _is_class(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether ``negative`` between these words is the name of a class."""
    return before[-1:] in (["false"], ["true"]) or after[:1] == ["predictive"]


def _negated(negation: str, after: Sequence[str], costs: Reading) -> Reading:
    """Return the opposite of the direction of the words after a negation, or ``unclear``.

    ``negative`` counts as a negation only before a likelihood or a quantity that should be small,
    because it may also name a class, as in ``negative_recall`` and ``negative_samples``.
    """
    reading = _read(after, "unclear" if negation == "negative" else costs)
    if reading is None:
        return "unclear"
    if negation == "negative" and reading == "max" and "likelihood" not in after:
        return "unclear"
    return _OPPOSITE[reading]


def _has(words: Sequence[str], known: Collection[str]) -> bool:
    """Return whether one of the words is known, with or without digits at its end (``rouge2``)."""
    return any(word in known or word.rstrip("0123456789") in known for word in words)


def _without_set(metric: str) -> str:
    """Return the name of a metric of loptune's trainer without its evaluation set, whose name says
    nothing about the metric.
    """
    for family in METRIC_FAMILIES:
        if metric.startswith(family):
            return family.removesuffix("/")
    return metric
