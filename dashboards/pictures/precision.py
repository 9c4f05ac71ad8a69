"""The limits of a verdict: few problems or few seeds."""

import math

from scipy import stats

from dashboards.pictures.theme import Picture
from dashboards.results import Results
from dashboards.statistics.problems import Array, ProblemSplit, paired_answers, split
from dashboards.statistics.verdict import Verdict
from dashboards.words import number

_HALF = 0.5  # share of the variance from which one of the two counts as what limits the verdict
_FOUND = float(stats.norm.ppf(0.95) + stats.norm.ppf(0.8))  # standard errors of a gain that is found 8 times in 10


def precision(results: Results) -> Picture | None:
    """Where the variance of scores comes from, and what would narrow the interval; None without answers."""
    found = results.verdict
    pair = None if found is None else paired_answers(results.answers, found.best, found.baseline)
    if found is None or pair is None:
        return None
    told = _what_limits(found, *pair, results.objective.worthwhile)
    return Picture("precision", "What limits the verdict: seeds or problems", told)


def _what_limits(verdict: Verdict, ours: Array, theirs: Array, worthwhile: float) -> str:
    found = split(ours, theirs)
    if found.training is None:
        return "More seeds tell whether seeds or problems limit it."
    share = found.evaluation_share
    if share is None:
        return "The best configuration and the baseline differ by the same on every seed."
    now = found.error(found.seeds, found.problems)
    problems = found.error(found.seeds, 2 * found.problems) / now
    seeds = found.error(2 * found.seeds, found.problems) / now
    text = (
        f"Of what pairing left of the variance between {verdict.best} and {verdict.baseline}, {share:.0%} is "
        f"evaluation on few problems and {1 - share:.0%} training that differs between seeds: more "
        f"{'problems' if share > _HALF else 'seeds'} would narrow the interval most for their price (twice the "
        f"problems to {problems:.0%} of its width, twice the seeds to {seeds:.0%}, were its variances known)."
    )
    return text + _hidden(found, worthwhile)


def _hidden(found: ProblemSplit, worthwhile: float) -> str:
    """How many problems a worthwhile gain takes, where evaluation's own noise hides one."""
    alone = _FOUND * math.sqrt(found.evaluation / found.seeds)
    if alone <= worthwhile:
        return ""
    needed = math.ceil(found.problems * (alone / worthwhile) ** 2)
    return (
        f" Evaluation is too coarse for a worthwhile {worthwhile:g}: on {found.seeds} seeds its noise alone hides "
        f"gains below {number(alone, 2)} (80 % power); it takes at least {needed} problems."
    )
