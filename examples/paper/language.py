"""Which kinds of words occur in completions with a high reward, and how often does each method use
them? [arXiv:2505.12929, figure 5]

    trainer evaluate runs/NAME -k 8 --temperature 0.7 --name words     # writes every completion
    python -m examples.paper.language runs/words                       # figure 5 (a)
    python -m examples.paper.language grpo=runs/w0,runs/w1 lopti=runs/w2,runs/w3 --plot words.png

The last line makes figure 5 (b): words by method, with one run per seed of each method.

The six categories and their words are the paper's (table 5). A phrase may have several words.
``...`` in a phrase stands for anything within one sentence, and a phrase that begins with ``'s``
follows a name: ``'s statement`` is found in "Ava's statement".
"""

import argparse
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from scipy import stats

from dashboards.labels import PALETTE
from loptune.files import read_json_lines
from research.png import write_png

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")

Floats = NDArray[np.float64]

# Table 5 with the counted inflections: the plural of nouns, the past tense and past participle
# of verbs.
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
class CategoryResult:
    """The frequency of one category and its correlation with the reward."""

    category: str
    occurrences: int
    per_100_words: float  # mean over completions
    used_by: float  # fraction of the completions with at least one word
    # Spearman's, of words per 100 words with the reward; NaN if one of them does not vary
    correlation: float
    low: float  # bounds of the 95% bootstrap interval over completions
    high: float


@dataclass(frozen=True)
class Completions:
    """Completions and their rewards."""

    texts: Sequence[str]
    rewards: Floats


def read_completions(runs: Sequence[Path]) -> Completions:
    """Return the completions of runs or evaluations, concatenated."""
    rows = [row for run in runs for row, _ in read_json_lines(run / "completions.jsonl")]
    rows = [row for row in rows if row.get("set") != "train"]  # only evaluations
    return Completions(
        [row["completion"] for row in rows], np.array([row["reward"] for row in rows])
    )


def analyze(completions: Completions) -> list[CategoryResult]:
    """Return each category's frequency in the completions, and its correlation with the reward."""
    lengths = np.array([max(1, len(_WORD.findall(text))) for text in completions.texts])
    return [
        _category(
            name,
            np.array([count_phrases(text, listed) for text in completions.texts]),
            lengths,
            completions,
        )
        for name, listed in PAPER.items()
    ]


def count_phrases(text: str, phrases: Sequence[str]) -> int:
    """Return how often the phrases occur in a text, as whole words and in any case."""
    return sum(len(pattern.findall(text)) for pattern in _patterns(tuple(phrases)))


@lru_cache(maxsize=64)
def _patterns(phrases: tuple[str, ...]) -> list[re.Pattern[str]]:
    # Phrases with a gap are counted separately, because the text in the gap may contain others.
    gapped = [phrase for phrase in phrases if "..." in phrase]
    single = sorted(set(phrases) - set(gapped), key=len, reverse=True)
    groups = ([single] if single else []) + [[phrase] for phrase in gapped]
    return [re.compile("|".join(map(_pattern, group)), re.IGNORECASE) for group in groups]


def _pattern(phrase: str) -> str:
    pieces = [r"\s+".join(map(re.escape, piece.split())) for piece in phrase.split("...")]
    words = r"\b[^.!?\n]*?\b".join(pieces).replace("'", "['’]")
    before = r"(?<=\w)" if phrase.startswith("'") else r"(?<!\w)"
    return rf"{before}{words}(?!\w)"


def _category(
    name: str, counts: NDArray[np.int64], words: NDArray[np.int64], given: Completions
) -> CategoryResult:
    rates = 100.0 * counts / words
    low, high = _correlation_interval(rates, given.rewards)
    return CategoryResult(
        category=name,
        occurrences=int(counts.sum()),
        per_100_words=float(rates.mean()),
        used_by=float((counts > 0).mean()),
        correlation=rank_correlation(rates, given.rewards),
        low=low,
        high=high,
    )


def _correlation_interval(x: Floats, y: Floats) -> tuple[float, float]:
    """Return the bootstrap interval. Resamples in which one of the two does not vary are
    left out.
    """
    # Ranks are computed only once: in every resample they would change the interval little and
    # cost most.
    ranks = np.stack([stats.rankdata(x), stats.rankdata(y)])

    def correlation(drawn: NDArray[np.int64]) -> float:
        of_x, of_y = ranks[:, drawn]
        varies = np.ptp(of_x) > 0 and np.ptp(of_y) > 0
        return float(stats.pearsonr(of_x, of_y).statistic) if varies else math.nan

    generator = np.random.default_rng(0)
    found = [correlation(generator.integers(0, len(x), len(x))) for _ in range(1000)]
    if np.isnan(found).all():
        return math.nan, math.nan
    low, high = np.nanquantile(found, [0.025, 0.975])
    return float(low), float(high)


def rank_correlation(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float:
    """Return Spearman's rank correlation, with ties at their mean rank; NaN if one of the two does
    not vary.
    """
    if len(np.unique(x)) < 2 or len(np.unique(y)) < 2:
        return math.nan
    return float(stats.spearmanr(x, y).statistic)


@dataclass(frozen=True)
class MethodFrequency:
    """How often the runs of one method use the words of one category."""

    method: str
    category: str
    per_100_words: float  # mean over runs of the mean over completions
    low: float  # 95% t interval over runs; NaN with one run
    high: float
    runs: int


def by_method(methods: Mapping[str, Sequence[Path]]) -> list[MethodFrequency]:
    """Return each category's frequency by method, with an interval over the method's runs."""
    frequencies = []
    for method, runs in methods.items():
        results = [analyze(read_completions([run])) for run in runs]
        for of_category in zip(*results, strict=True):
            rates = np.array([result.per_100_words for result in of_category])
            half = math.nan
            if len(rates) > 1:
                error = rates.std(ddof=1) / math.sqrt(len(rates))
                half = float(stats.t.ppf(0.975, len(rates) - 1) * error)
            mean = float(rates.mean())
            category = of_category[0].category
            frequencies.append(
                MethodFrequency(method, category, mean, mean - half, mean + half, len(rates))
            )
    return frequencies


def plot(frequencies: Sequence[MethodFrequency]) -> go.Figure:
    """Return bars of words per 100 words by category and method, with the intervals over runs."""
    figure = go.Figure()
    for method in dict.fromkeys(row.method for row in frequencies):
        rows = [row for row in frequencies if row.method == method]
        errors = [0.0 if math.isnan(row.high) else row.high - row.per_100_words for row in rows]
        figure.add_bar(
            name=f"{method} ({rows[0].runs} runs)",
            x=[row.category for row in rows],
            y=[row.per_100_words for row in rows],
            error_y={"type": "data", "array": errors},
        )
    figure.update_layout(
        template="none",
        barmode="group",
        colorway=PALETTE,
        yaxis_title="per 100 words",
        height=420,
        legend={"orientation": "h", "y": 1.1},
    )
    return figure


def main(arguments: Sequence[str]) -> int:
    """Print a line for each category, or for each category and method."""
    parser = argparse.ArgumentParser(prog="python -m examples.paper.language")
    parser.add_argument("runs", nargs="+", metavar="RUN or METHOD=RUN,RUN")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="plot the words by method")
    given = parser.parse_args(arguments)
    named = [argument.partition("=") for argument in given.runs]
    if all(separator for _, separator, _ in named):
        frequencies = by_method({name: [*map(Path, runs.split(","))] for name, _, runs in named})
        for row in frequencies:
            interval = "one run" if row.runs == 1 else f"{row.low:.2f}..{row.high:.2f}"
            print(f"{row.category:<22}{row.method:<16}{row.per_100_words:6.2f}  ({interval})")
        if given.plot:
            write_png(plot(frequencies), given.plot)
        return 0
    if given.plot or any(separator for _, separator, _ in named):
        parser.error("write every run as METHOD=RUN,RUN, or none of them and no --plot")
    return _print_correlations([Path(folder) for folder in given.runs])


def _print_correlations(runs: Sequence[Path]) -> int:
    completions = read_completions(runs)
    for result in analyze(completions):
        print(
            f"{result.category:<22}{result.occurrences:>7}  {result.per_100_words:6.2f} per 100 "
            f"words  used by {result.used_by:4.0%}  rank correlation {result.correlation:+.2f} "
            f"({result.low:+.2f}..{result.high:+.2f})"
        )
    print(f"{len(completions.texts)} completions, mean reward {completions.rewards.mean():.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
