"""A verdict on runs from anywhere. To import it takes no library; to judge takes pandas and
SciPy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from dashboards.results import Results
    from dashboards.statistics.verdict import Verdict


@dataclass(frozen=True)
class Judgement:
    """A verdict with its words; ``str()`` of it prints them."""

    results: "Results"
    sentences: Sequence[str]  # the verdict, the next step, and what they rest on

    @property
    def verdict(self) -> "Verdict | None":
        """The numbers, on fresh seeds where there are any; None for what was tuned, as
        `Results.arm_standings` is.
        """
        if self.results.arms:
            return None
        return self.results.fresh_verdict or self.results.verdict

    def write_report(self, folder: str | Path) -> Path:
        """Write ``report.html`` and ``trials.csv``; return the page."""
        from dashboards.pages.report import write_pages

        return write_pages(self.results, Path(folder))

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def judge(
    table: "pd.DataFrame",
    *,
    by: Sequence[str],
    baseline: Mapping[str, Any],
    score: str,
    seed: str,
    fresh: "bool | pd.DataFrame" = False,
    **options: Any,
) -> Judgement:
    """Return the verdict on a table of runs.

    Args:
        table: one row per run, or per evaluation if there is a column of steps.
        by: columns that make up a configuration.
        baseline: column -> value of the configuration to beat.
        score: column of the score.
        seed: column of the seed.
        fresh: True if nobody chose anything by these seeds; or a second table, with the chosen
            configurations on fresh seeds.
        options: the other fields of `dashboards.sources.runs.Question`.

    Raises:
        ConfigError: no verdict follows from the table.
    """
    from dashboards.pictures.verdict import verdict
    from dashboards.sources.runs import Question, read_runs, with_fresh

    question = Question(by=by, baseline=baseline, score=score, seed=seed, **options)
    results = read_runs(table, question, adaptive=fresh is not True)
    if not isinstance(fresh, bool):
        results = with_fresh(results, fresh, question)
    return Judgement(results, verdict(results))
