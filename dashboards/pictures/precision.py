"""The limits of a verdict: few problems or few seeds."""

import math

from scipy import stats

from dashboards.pictures.theme import Picture
from dashboards.results import Results
from dashboards.statistics.problems import Array, ProblemSplit, paired_answers, split
from dashboards.statistics.verdict import Verdict
from dashboards.words import number

_HALF = 0.5  # share of the variance from which one of the two counts as what limits the verdict
# standard errors of a gain that is found 8 times in 10
_FOUND = float(stats.norm.ppf(0.95) + stats.norm.ppf(0.8))


def precision(results: Results) -> Picture | None:
    """Return where the variance of scores comes from, and what would narrow the interval; None
    without answers.
    """
    judged = results.verdict
    pair = None if judged is None else paired_answers(results.answers, judged.best, judged.baseline)
    if judged is None or pair is None:
        return None
    text = _what_limits(judged, *pair, results.objective.worthwhile)
    return Picture("precision", "What limits the verdict: seeds or problems", text)


def _what_limits(verdict: Verdict, ours: Array, theirs: Array, worthwhile: float) -> str:
    parts = split(ours, theirs)
    if parts.training is None:
        return "More seeds would show whether seeds or problems limit it."
    share = parts.evaluation_share
    if share is None:
        return "The best configuration and the baseline differ by the same on every seed."
    text = (
        f"Of the variance between {verdict.best} and {verdict.baseline} that pairing left, "
        f"{share:.0%} comes from evaluation on few problems and {1 - share:.0%} from training that "
        f"differs between seeds: more {'problems' if share > _HALF else 'seeds'} would narrow the "
        "interval most for their price."
    )
    return text + _hidden(parts, worthwhile)


def _hidden(parts: ProblemSplit, worthwhile: float) -> str:
    """Return how many problems a worthwhile gain takes, where evaluation's own noise hides one."""
    alone = _FOUND * math.sqrt(parts.evaluation / parts.seeds)
    if alone <= worthwhile:
        return ""
    needed = math.ceil(parts.problems * (alone / worthwhile) ** 2)
    return (
        f" Evaluation is too coarse for a worthwhile {worthwhile:g}: on {parts.seeds} seeds its "
        "noise alone hides "
        f"improvements below {number(alone, 2)} (80% power); it takes at least {needed} problems."
    )
