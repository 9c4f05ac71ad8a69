"""What limits a verdict: what pairing by seed removed, how coarse evaluation is, more problems or more seeds."""

import math

import numpy as np
import plotly.graph_objects as go
from scipy import stats

from dashboards.labels import PALETTE
from dashboards.pictures.judged import answers, judge, seed_scores
from dashboards.pictures.theme import MUTED, Picture, figure, number, signed
from dashboards.queries import Sweep
from dashboards.statistics.problems import ProblemSplit, evaluation_interval, paired_answers, split
from dashboards.statistics.seed_noise import seed_share
from dashboards.statistics.verdict import Verdict

HALF = 0.5  # share of the variance from which one of the two counts as what limits the verdict
MOST_SEEDS = 12  # drawn at least
_ONE_SIDED = float(stats.norm.ppf(0.95))
_SHADES = {"alike for all: paired away": MUTED, "training": PALETTE[0], "evaluation": PALETTE[1]}


def limits(sweep: Sweep) -> str:
    """One sentence for the top of the page."""
    share, found = seed_share(seed_scores(sweep)), _split(sweep)
    if math.isnan(share):
        return ""
    text = (
        f"Pairing by seed removed {share:.0%} of the variance between scores, where seeds are good or bad for all "
        "configurations alike"
    )
    if found is None or found.evaluation_share is None:
        return f"{text}; only what is left counts as noise."
    return (
        f"{text}; of what is left {found.evaluation_share:.0%} is evaluation on {found.problems} problems: "
        f"{_advice(found.evaluation_share)} would narrow the interval most."
    )


def precision(sweep: Sweep) -> Picture:
    """Where the variance of scores comes from, and how wide the interval would be with more of what makes it."""
    title, found = "What limits the verdict: seeds or problems", _split(sweep)
    share = seed_share(seed_scores(sweep))
    said = [_removed(share), _coarse(sweep), _what_limits(sweep, found)]
    figures = []
    if not math.isnan(share):
        figures.append(_shares_figure(share, None if found is None else found.evaluation_share))
    if found is not None and found.evaluation_share is not None:
        figures.append(_width_figure(sweep, found))
    return Picture("precision", title, " ".join(filter(None, said)), tuple(figures))


def _split(sweep: Sweep) -> ProblemSplit | None:
    """Of the best configuration against the baseline; None where no problems are on record."""
    pair = _pair(sweep, judge(sweep))
    return None if pair is None else split(*pair)


def _pair(sweep: Sweep, verdict: Verdict | None) -> tuple[np.ndarray, np.ndarray] | None:
    return None if verdict is None else paired_answers(answers(sweep), verdict.best, verdict.baseline)


def _removed(share: float) -> str:
    if math.isnan(share):
        return "What pairing by seed removes is unknown: it takes two configurations on two seeds."
    return (
        f"Pairing by seed removed {share:.0%} of the variance between scores: seeds are good or bad for all "
        "configurations alike, and only what is left counts as noise."
    )


def _coarse(sweep: Sweep) -> str:
    """By how much the score of one evaluation can change at least."""
    if not sweep.solved:
        return "Which problems were solved is not on record."
    one, worthwhile = next(iter(sweep.solved.values())), sweep.objective.worthwhile
    text = (
        f"Evaluation: {len(one.accuracy)} problems, so that {sweep.objective.metric} moves in steps of "
        f"{number(one.step, 2)}"
    )
    if one.step >= worthwhile:
        return f"{text}, too coarse for a worthwhile {worthwhile:g}: a single answer more would seem to be one."
    return f"{text}."


def _what_limits(sweep: Sweep, found: ProblemSplit | None) -> str:
    verdict = judge(sweep)
    if found is None or verdict is None:
        return ""
    if found.training is None:
        pair = _pair(sweep, verdict)
        assert pair is not None
        low, high = evaluation_interval(*pair)
        return (
            f"Paired by problem, {verdict.best} differs from {verdict.baseline} by {signed(low)} to "
            f"{signed(high)} (90 %) for the noise of evaluation alone; that of seeds comes on top."
        )
    share = found.evaluation_share
    if share is None:
        return "The best configuration and the baseline differ by the same on every seed."
    now = found.error(found.seeds, found.problems)
    problems = found.error(found.seeds, 2 * found.problems) / now
    seeds = found.error(2 * found.seeds, found.problems) / now
    text = (
        f"Of what pairing left of the variance between {verdict.best} and {verdict.baseline}, {share:.0%} is "
        f"evaluation on few problems and {1 - share:.0%} training that differs between seeds: {_advice(share)} "
        f"would narrow the interval most for their price (twice the problems to {problems:.0%} of its width, "
        f"twice the seeds to {seeds:.0%}). The curves are of this pair, were its variances known; the interval of "
        "the verdict also pays for estimating them and for looking at several pairs."
    )
    return text + _hidden(found, sweep.objective.worthwhile)


def _hidden(found: ProblemSplit, worthwhile: float) -> str:
    """How many problems a worthwhile gain takes, where evaluation's own noise hides one."""
    alone = _ONE_SIDED * math.sqrt(found.evaluation / found.seeds)
    if alone <= worthwhile:
        return ""
    needed = math.ceil(found.problems * (alone / worthwhile) ** 2)
    return (
        f" Evaluation is too coarse for a worthwhile {worthwhile:g}: on {found.seeds} seeds its noise alone hides "
        f"{number(alone, 2)}; about {needed} problems would do."
    )


def _advice(share: float) -> str:
    return "more problems" if share > HALF else "more seeds"


def _shares_figure(common: float, evaluation: float | None) -> go.Figure:
    """One bar of the variance of a score between seeds."""
    rest = 1 - common
    parts = {"noise": rest}
    if evaluation is not None:
        parts = {"training": rest * (1 - evaluation), "evaluation": rest * evaluation}
    drawing = figure("share of the variance between seeds", height=190)
    for name, share in {"alike for all: paired away": common, **parts}.items():
        drawing.add_bar(
            x=[share],
            y=[""],
            orientation="h",
            name=f"{name} {share:.0%}",
            marker={"color": _SHADES.get(name, PALETTE[0])},
            hovertext=[f"{name}: {share:.1%}"],
            hoverinfo="text",
        )
    drawing.update_layout(barmode="stack", legend_traceorder="normal")
    drawing.update_yaxes(visible=False)
    drawing.update_xaxes(range=[0, 1], tickformat=".0%")
    return drawing


def _width_figure(sweep: Sweep, found: ProblemSplit) -> go.Figure:
    """Half of the 90 % interval against seeds, on so many problems, twice as many, and without limit."""
    seeds = range(2, max(MOST_SEEDS, 2 * found.seeds) + 1)
    drawing = figure("seeds of each", "half of a 90 % interval", height=380)
    several = {
        f"{found.problems} problems": (found.problems, PALETTE[1], "solid"),
        f"{2 * found.problems} problems": (2 * found.problems, PALETTE[1], "dash"),
        "training alone": (math.inf, PALETTE[0], "dot"),
    }
    for name, (problems, shade, dash) in several.items():
        drawing.add_scatter(
            x=list(seeds),
            y=[_ONE_SIDED * found.error(count, problems) for count in seeds],
            mode="lines",
            name=name,
            line={"color": shade, "width": 2, "dash": dash},
        )
    drawing.add_scatter(
        x=[found.seeds],
        y=[_ONE_SIDED * found.error(found.seeds, found.problems)],
        mode="markers",
        name="this sweep",
        marker={"color": PALETTE[1], "size": 11},
    )
    drawing.add_scatter(
        x=[seeds[0], seeds[-1]],
        y=[sweep.objective.worthwhile] * 2,
        mode="lines",
        name=f"worthwhile {sweep.objective.worthwhile:g}",
        line={"color": MUTED, "width": 1},
    )
    drawing.update_yaxes(rangemode="tozero")
    return drawing
