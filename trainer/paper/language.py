"""``trainer analyze-language``: which kinds of words go with a high reward [arXiv:2505.12929, figure 5].

The six categories and their words are the paper's (table 5). A phrase may have several words. ``...`` in it stands
for anything within one sentence, and a phrase that begins with ``'s`` follows a name: ``'s statement`` is found in
"Ava's statement".
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trainer.config.yaml_document import nearest
from trainer.errors import ConfigError, MissingError
from trainer.evaluation.estimators import bootstrap_interval, rank_correlation

_TEXT_COLUMNS = ("completion", "response", "text")
_REWARD_COLUMNS = ("reward", "score")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_BINS = 5
_MIN_COMPLETIONS = 10  # fewer say nothing about a correlation

Floats = NDArray[np.float64]

# Table 5, with the inflections it counts: the plural of nouns, the past tense and past participle of verbs.
PAPER: dict[str, tuple[str, ...]] = {
    "analysis": (
        *("analyze", "analyzed", "consider", "considered", "look at", "looked at"),
        *("check", "checked", "examine", "examined"),
    ),
    "statement": ("'s statement", "'s statements"),
    "causal indicator": ("since", "because", "due to", "given that"),
    "conclusion indicator": ("so", "thus", "hence", "as a result", "consequently", "therefore"),
    "assumption": ("assume", "assumed", "if ... then"),
    "assertion": ("must be", "definite"),
}


@dataclass(frozen=True)
class FrequencyBin:
    """The completions that use a category about equally often."""

    lowest: float  # words of the category per 100 words of the completion
    highest: float
    completions: int
    reward: float  # mean


@dataclass(frozen=True)
class CategoryResult:
    """The frequency of one category and its correlation with the reward."""

    category: str
    occurrences: int
    per_completion: float  # mean
    per_100_words: float  # mean over completions
    used_by: float  # share of the completions with at least one
    correlation: float  # Spearman's, of words per 100 words with the reward; NaN where either never varies
    low: float  # its 95 % bootstrap interval over completions
    high: float
    count_correlation: float  # Spearman's, of the plain count with the reward: long completions have more of all
    bins: list[FrequencyBin] = field(default_factory=list)


@dataclass(frozen=True)
class Completions:
    """Completions and their rewards."""

    texts: Sequence[str]
    rewards: Floats


def read_completions(paths: Sequence[Path], step: int | None = None) -> Completions:
    """The completions of runs (``completions.jsonl`` of their folder) and JSON-lines files, put together.

    A line holds the text as ``completion``, ``response`` or ``text`` and its ``reward`` or ``score``. With a
    ``step``, only those logged at this training step.

    Raises:
        MissingError: no such file, or no completions in it.
        ConfigError: a line that is not such an object, naming file and line.
    """
    texts, rewards, steps = [], [], set()
    for path in paths:
        file = path / "completions.jsonl" if path.is_dir() else path
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise MissingError(
                f"cannot read completions: {reason}", str(file), "give a run's folder or a .jsonl file"
            ) from error
        for number, line in enumerate(lines, start=1):
            if line.strip():
                row = _row(line, f"{file}, line {number}")
                steps.add(row.get("step"))
                if step is None or row.get("step") == step:
                    where = f"{file}, line {number}"
                    texts.append(str(_column(row, _TEXT_COLUMNS, where)))
                    rewards.append(_number(_column(row, _REWARD_COLUMNS, where), where))
    if not texts:
        known = ", ".join(map(str, sorted(s for s in steps if s is not None)))
        hint = f"there are steps {known}" if known else "log some with tracking.completions, or trainer evaluate"
        raise MissingError("there are no completions", ", ".join(map(str, paths)), hint)
    return Completions(texts, np.array(rewards))


def analyze(completions: Completions) -> list[CategoryResult]:
    """Count the words of every category in every completion, and relate them to the reward.

    Raises:
        MissingError: fewer than ten completions.
    """
    if len(completions.texts) < _MIN_COMPLETIONS:
        raise MissingError(
            f"{len(completions.texts)} completions are too few to relate words to rewards",
            "completions",
            "trainer evaluate MODEL writes every completion of an evaluation into its folder",
        )
    lengths = np.array([max(1, len(_WORD.findall(text))) for text in completions.texts])
    return [
        _category(name, np.array([count_phrases(text, listed) for text in completions.texts]), lengths, completions)
        for name, listed in PAPER.items()
    ]


def count_phrases(text: str, phrases: Sequence[str]) -> int:
    """Count the phrases in a text, as whole words, regardless of case."""
    return sum(len(pattern.findall(text)) for pattern in _patterns(tuple(phrases)))


@lru_cache(maxsize=64)
def _patterns(phrases: tuple[str, ...]) -> list[re.Pattern[str]]:
    # Phrases with a gap are counted on their own: what stands in the gap may hold others.
    gapped = [phrase for phrase in phrases if "..." in phrase]
    whole = sorted(set(phrases) - set(gapped), key=len, reverse=True)
    groups = ([whole] if whole else []) + [[phrase] for phrase in gapped]
    return [re.compile("|".join(map(_pattern, group)), re.IGNORECASE) for group in groups]


def _pattern(phrase: str) -> str:
    pieces = [r"\s+".join(map(re.escape, piece.split())) for piece in phrase.split("...")]
    words = r"\b[^.!?\n]*?\b".join(pieces).replace("'", "['’]")
    before = r"(?<=\w)" if phrase.startswith("'") else r"(?<!\w)"
    return rf"{before}{words}(?!\w)"


def summary(results: Sequence[CategoryResult], completions: Completions) -> dict[str, Any]:
    """The results as JSON values, but that a correlation which does not exist is NaN."""
    return {
        "completions": len(completions.texts),
        "mean_reward": float(completions.rewards.mean()),
        "words": {category: list(listed) for category, listed in PAPER.items()},
        "categories": [asdict(result) for result in results],
    }


def table_rows(results: Sequence[CategoryResult]) -> list[dict[str, Any]]:
    """The results as cells of a printed table; the last columns are mean rewards from rare to frequent use."""
    return [
        {
            "category": r.category,
            "count": r.occurrences,
            "per 100": f"{r.per_100_words:.2f}",
            "used": f"{r.used_by:.0%}",
            "correlation": "-" if math.isnan(r.correlation) else f"{r.correlation:+.2f} ({r.low:+.2f}..{r.high:+.2f})",
            "reward, rare to frequent": " ".join(f"{part.reward:+.2f}" for part in r.bins),
        }
        for r in results
    ]


def _category(name: str, counts: NDArray[np.int64], words: NDArray[np.int64], given: Completions) -> CategoryResult:
    rates = 100.0 * counts / words
    low, high = _correlation_interval(rates, given.rewards)
    return CategoryResult(
        category=name,
        occurrences=int(counts.sum()),
        per_completion=float(counts.mean()),
        per_100_words=float(rates.mean()),
        used_by=float((counts > 0).mean()),
        correlation=rank_correlation(rates, given.rewards),
        low=low,
        high=high,
        count_correlation=rank_correlation(counts.astype(np.float64), given.rewards),
        bins=_frequency_bins(rates, given.rewards),
    )


def _frequency_bins(rates: Floats, rewards: Floats) -> list[FrequencyBin]:
    """At most five bins with about equally many completions; equal rates share a bin."""
    shares = np.linspace(0, 1, _BINS + 1)[1:]
    highest = np.unique(np.quantile(rates, shares, method="inverted_cdf"))  # observed rates: no bin is empty
    index = np.searchsorted(highest, rates, side="left")
    parts = [(rates[index == i], rewards[index == i]) for i in range(len(highest))]
    return [
        FrequencyBin(float(rate.min()), float(rate.max()), len(rate), float(reward.mean())) for rate, reward in parts
    ]


def _correlation_interval(x: Floats, y: Floats) -> tuple[float, float]:
    # Ranks are taken once: ranking again in every resample would change the interval little and cost most.
    ranks = np.stack([stats.rankdata(x), stats.rankdata(y)])

    def correlation(drawn: NDArray[np.int64]) -> float:
        of_x, of_y = ranks[:, drawn]
        varies = np.ptp(of_x) > 0 and np.ptp(of_y) > 0
        return float(stats.pearsonr(of_x, of_y).statistic) if varies else math.nan

    return bootstrap_interval(len(x), correlation)


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg}", where, "one object per line") from error
    if not isinstance(row, dict):
        raise ConfigError(f"a line is a JSON object, not {type(row).__name__}", where, "one object per line")
    return row


def _column(row: dict[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise ConfigError(f"no column {' or '.join(names)}", where, nearest(names[0], row))


def _number(value: Any, where: str) -> float:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise ConfigError(f"the reward is not a finite number: {value!r}", where, "correct or remove the line")
