"""The limit of a verdict's precision: too few problems or too few seeds."""

import math

from dashboards.pictures.theme import Picture
from dashboards.results import Results
from dashboards.statistics.levels import DETECTABLE_ERRORS
from dashboards.statistics.problems import Array, ProblemSplit, paired_answers, split
from dashboards.words import number


def precision(results: Results) -> Picture | None:
    """State the sources of the variance and how to narrow the interval; None without per-problem
    records.
    """
    judged = results.verdict
    answers = results.answers
    if results.fresh is not None and results.fresh_verdict is not None:
        judged = results.fresh_verdict
        answers = results.fresh.answers
    pair = None if judged is None else paired_answers(answers, judged.best, judged.baseline)
    if judged is None or pair is None:
        return None
    name = results.names()
    compared = f"{name(judged.best)} and {name(judged.baseline)}"
    text = _what_limits(compared, *pair, results.objective.worthwhile)
    return Picture("precision", "What limits the verdict: seeds or problems", text)


def _what_limits(compared: str, ours: Array, theirs: Array, worthwhile: float) -> str:
    parts = split(ours, theirs)
    if parts.training is None:
        return "One seed cannot separate seed noise from evaluation noise. Run more seeds."
    fraction = parts.evaluation_fraction
    if fraction is None:
        return (
            "The difference between the best configuration and the baseline is the same on "
            "every seed."
        )
    # the width of the interval grows with the root of the variance
    with_problems = 1 - math.sqrt(1 - fraction / 2)
    with_seeds = 1 - math.sqrt(1 / 2)
    text = (
        f"Of the variance of the paired difference between {compared}, {fraction:.0%} comes "
        "from evaluating on few problems and "
        f"{1 - fraction:.0%} from training differences between seeds. With twice the problems the "
        f"interval would be about {with_problems:.0%} narrower, with twice the seeds "
        f"{with_seeds:.0%}."
    )
    return text + _hidden(parts, worthwhile)


def _hidden(parts: ProblemSplit, worthwhile: float) -> str:
    """State how many problems would detect a worthwhile improvement, if evaluation noise alone
    hides it; else return an empty string.
    """
    alone = DETECTABLE_ERRORS * math.sqrt(parts.evaluation / parts.seeds)
    if alone <= worthwhile:
        return ""
    needed = math.ceil(parts.problems * (alone / worthwhile) ** 2)
    return (
        f" Evaluation is too coarse to detect a worthwhile improvement of {worthwhile:g}: "
        f"with {parts.seeds} seeds, evaluation noise alone hides improvements below "
        f"{number(alone, 2)} (80% power). Use at least {needed} problems."
    )
