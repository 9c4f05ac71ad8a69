"""How often do the verdict and other tests claim false improvements on public DQN and PPO runs, and
how often do they detect true ones?

    # cases per study; minutes on one core:
    python -m research.verdict_on_real_runs --cases 400
    # a table of the tests that keep their level and detect more than the verdict:
    python -m research.verdict_on_real_runs --goal --cases 1000
    # one finalist, with seeds that are blocks or not:
    python -m research.verdict_on_real_runs --blocks --cases 1000
    # three finalists, five seeds:
    python -m research.verdict_on_real_runs --picture docs/pictures/real_runs.png

Data: final scores of DQN and PPO at about 140 points of their hyperparameters with ten seeds each,
from seven studies of ARLBench's Sobol landscapes (Becktepe et al. 2024, arXiv:2409.18827;
BSD-3-Clause). Many runs collapse, so scores are not normal. All seeds are fresh: no choice depended
on them.

- equal means: different configurations, each centered at the mean of its ten seeds. Shapes and
  spreads remain real, and every claim is false. Drawn seeds are shifted so that their means vary as
  much as those of seeds from a population, instead of a part of the ten (`widened`).
- real: the scores as they are. A claim is wrong if the finalist is not better on the seeds that no
  test saw.
- beside a better one: the first finalist is raised by ``BETTER``. Claims about the others are
  false.
- rounds: one analysis at eight seeds, and rounds that may stop at five, six or seven.

The other tests judge each finalist separately, at 5% divided by the number of finalists if they
have a level:

- the better mean; all seeds better; bars of one standard deviation that do not overlap;
- a paired t test, also with Holm's correction, and Welch's t test; both also at the verdict's level
  0.05 f / (f + 2); the average of a finalist's own variance and the pooled one, without the rule
  for a noisy baseline. If scores do not vary over the seeds of a test, no t test is made: equal
  scores are coarse, not certain;
- Mann-Whitney's test, and a permutation test of the difference of means;
- bootstraps: percentiles and BCa of the difference of means, and percentiles of the probability of
  improvement, drawn as rliable draws them (arXiv:2108.13264);
- limma's moderated t test of paired differences (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3): the
  variances of all finalists shrink toward a common one;
- a hierarchical Bayesian model: differences are normal around 0, and their spread and the noise are
  integrated over a grid. It claims an improvement if a difference is positive with a probability
  above 95%.
"""

import argparse
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from scipy import special, stats

from dashboards.fresh_seeds import MIN_SEEDS
from dashboards.statistics.arms import compare_arms, compare_with_number
from dashboards.statistics.dunnett import critical_value
from dashboards.statistics.group_sequential import Design
from dashboards.statistics.layouts import Pairing
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL, level
from dashboards.statistics.rounds import boundaries, schedule_analyses
from research.decide import in_rounds
from research.png import write_png
from research.tables import percent, print_rows
from research.verdict_errors import AFTER, alone_tests, squares

Array = NDArray[np.float64]
# scores [N, C, S], the baseline first -> claims [N, C - 1]
Test = Callable[[Array], NDArray[np.bool_]]

RUNS = Path(__file__).parent / "data" / "real_runs.csv.gz"
SEEDS = 10
COARSE = 1e-9  # standard deviation of scores that are equal except for rounding
# numbers of finalists and of fresh seeds
LAYOUTS = [
    (1, 3), (1, 5), (1, 8), (2, 3), (2, 5), (3, 3), (3, 5), (4, 3), (4, 5), (4, 8),
    (8, 3), (8, 5), (8, 8), (9, 2),
]  # fmt: skip
ROUNDS = 8  # maximum number of seeds in rounds
# A test keeps its level if its rate of false claims is at most this in every study (see `holds`).
WORST = 2 * SIGNIFICANCE_LEVEL
_CASES_OF_BOOTSTRAPS = 60  # number of cases per study
BETTER = 1.5  # in standard deviations of a study's scores
_RESAMPLES = 1000
_PERMUTATIONS = 2000  # if there are more, this many are drawn


def studies() -> dict[str, Array]:
    """Return study -> scores [C, S] of the configurations that have all seeds and vary between
    them, scaled to unit variance.
    """
    by_study = {}
    for name, rows in pd.read_csv(RUNS).groupby("study"):
        table = (
            rows.pivot(index="configuration", columns="seed", values="score")
            .dropna()
            .to_numpy(float)
        )
        table = table[table.std(axis=1) > 1e-9 * table.std()]
        by_study[str(name)] = (table - table.mean()) / table.std()
    return by_study


def drawn(table: Array, finalists: int, cases: int, generator: np.random.Generator) -> Array:
    """Return drawn configurations with their seeds in random order, which is the same for all
    configurations of a case, [N, C, 10].
    """
    chosen = np.array(
        [generator.choice(len(table), finalists + 1, replace=False) for _ in range(cases)]
    )
    order = generator.permuted(np.tile(np.arange(SEEDS), (cases, 1)), axis=1)
    return np.take_along_axis(table[chosen], order[:, None, :], axis=2)


def widened(scores: Array) -> Array:
    """Give the means of drawn seeds, [N, C, S], the variance that seeds from a population have.

    The variance of means of S of the ten seeds around which they are centered is too small by a
    factor of (1 - S / 10). The shift that corrects it also corrects the mean of the first K of the
    seeds, and its covariance with the mean of S.
    """
    fraction = scores.shape[2] / SEEDS
    return scores + scores.mean(axis=2, keepdims=True) * (1 / np.sqrt(1 - fraction) - 1)


def level_of(scores: Array) -> float:
    return SIGNIFICANCE_LEVEL / (scores.shape[1] - 1)


def verdict(scores: Array) -> NDArray[np.bool_]:
    """Return the finalists that the table of all arms calls better; none on fewer than
    three seeds.
    """
    if scores.shape[2] < MIN_SEEDS:
        return np.zeros((len(scores), scores.shape[1] - 1), bool)
    return AFTER.better(scores)


def better_mean(scores: Array) -> NDArray[np.bool_]:
    return np.asarray(scores[:, 1:].mean(axis=2) > scores[:, :1].mean(axis=2))


def all_better(scores: Array) -> NDArray[np.bool_]:
    return np.asarray((scores[:, 1:] > scores[:, :1]).all(axis=2))


def welch(scores: Array) -> NDArray[np.bool_]:
    with np.errstate(divide="ignore", invalid="ignore"):
        test = stats.ttest_ind(
            scores[:, 1:], scores[:, :1], axis=2, equal_var=False, alternative="greater"
        )
    varied = scores[:, 1:].std(axis=2) + scores[:, :1].std(axis=2) > COARSE
    return np.asarray(varied & (test.pvalue < level_of(scores)))


def paired(scores: Array) -> NDArray[np.bool_]:
    varied = (scores[:, 1:] - scores[:, :1]).std(axis=2) > COARSE
    return np.asarray(varied & alone_tests(scores))


def penalized_welch(scores: Array) -> NDArray[np.bool_]:
    """Return claims of Welch's test at `levels.level` of Satterthwaite's degrees of freedom."""
    variances = scores.var(axis=2, ddof=1)
    both = variances[:, 1:] + variances[:, :1]
    dof = scores.shape[2] - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        welch = dof * both**2 / (variances[:, 1:] ** 2 + variances[:, :1] ** 2)
        gains = scores[:, 1:].mean(axis=2) - scores[:, :1].mean(axis=2)
        p = stats.t.sf(gains / np.sqrt(both / scores.shape[2]), welch)
    claims = p < level(welch) / (scores.shape[1] - 1)
    return np.asarray((both > COARSE**2) & claims)


def penalized_paired(scores: Array) -> NDArray[np.bool_]:
    """Return claims of a paired t test at `levels.level`."""
    differences = scores[:, 1:] - scores[:, :1]
    seeds = scores.shape[2]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = differences.mean(axis=2) / (differences.std(axis=2, ddof=1) / np.sqrt(seeds))
    p = stats.t.sf(t, seeds - 1)
    claims = p < level(float(seeds - 1)) / (scores.shape[1] - 1)
    return np.asarray((differences.std(axis=2) > COARSE) & claims)


def half_own(scores: Array) -> NDArray[np.bool_]:
    """Return claims of Dunnett's test with the average of the own and the pooled variance, at
    `levels.level`.
    """
    finalists = scores.shape[1] - 1
    seeds = scores.shape[2]
    dof = finalists * (seeds - 1)
    differences = scores[:, 1:] - scores[:, :1]
    pooled = squares(scores) / dof
    variance = (2 * pooled[:, None] + differences.var(axis=2, ddof=1)) / 2
    needed = critical_value(finalists, dof) * np.sqrt(variance / seeds)
    return np.asarray((pooled[:, None] > COARSE**2) & (differences.mean(axis=2) > needed))


def paired_holm(scores: Array) -> NDArray[np.bool_]:
    """Return claims of paired t tests with Holm's step-down correction."""
    differences = scores[:, 1:] - scores[:, :1]
    seeds = scores.shape[2]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = differences.mean(axis=2) / (differences.std(axis=2, ddof=1) / np.sqrt(seeds))
    p = np.where(differences.std(axis=2) > COARSE, stats.t.sf(t, seeds - 1), 1.0)
    return holm(p)


def holm(p: Array) -> NDArray[np.bool_]:
    """Return whether each p value, [N, C], is significant with Holm's correction."""
    finalists = p.shape[1]
    order = p.argsort(axis=1)
    passed = np.take_along_axis(p, order, axis=1) < SIGNIFICANCE_LEVEL / np.arange(finalists, 0, -1)
    passed = np.logical_and.accumulate(passed, axis=1)
    claims = np.zeros(p.shape, bool)
    np.put_along_axis(claims, order, passed, axis=1)
    return claims


def permutation(scores: Array) -> NDArray[np.bool_]:
    """Return claims of a permutation test of the difference of means, exact up to
    ``_PERMUTATIONS``.
    """
    seeds = scores.shape[2]
    if math.comb(2 * seeds, seeds) <= _PERMUTATIONS:
        chosen = list(itertools.combinations(range(2 * seeds), seeds))
    else:
        generator = np.random.default_rng(0)
        drawn_at = [generator.permutation(2 * seeds)[:seeds] for _ in range(_PERMUTATIONS - 1)]
        chosen = [range(seeds), *drawn_at]  # type: ignore[list-item]
    signs = -np.ones((2 * seeds, len(chosen)))
    for place, members in enumerate(chosen):
        signs[list(members), place] = 1
    claims = np.zeros((len(scores), scores.shape[1] - 1), bool)
    for finalist in range(1, scores.shape[1]):
        both = np.concatenate([scores[:, finalist], scores[:, 0]], axis=1)
        apart = both @ signs
        p = (apart >= apart[:, :1] - COARSE).mean(axis=1)
        claims[:, finalist - 1] = (p <= level_of(scores) + 1e-12) & (both.std(axis=1) > COARSE)
    return claims


def moderated(scores: Array) -> NDArray[np.bool_]:
    """Return claims of limma's moderated t test of the paired differences; with one finalist, a
    paired t test.
    """
    differences = scores[:, 1:] - scores[:, :1]
    finalists, seeds = differences.shape[1:]
    dof = seeds - 1
    variance = np.maximum(differences.var(axis=2, ddof=1), COARSE**2)
    known = np.zeros(len(scores))
    common = np.ones(len(scores))
    if finalists > 1:
        log = np.log(variance) - special.digamma(dof / 2) + math.log(dof / 2)
        spread = log.var(axis=1, ddof=1) - special.polygamma(1, dof / 2)
        known = np.array([2 * inverse_trigamma(value) if value > 0 else 1e6 for value in spread])
        common = np.exp(log.mean(axis=1) + special.digamma(known / 2) - np.log(known / 2))
    shrunken = (known * common)[:, None] + dof * variance
    shrunken /= (known + dof)[:, None]
    t = differences.mean(axis=2) / np.sqrt(shrunken / seeds)
    p = stats.t.sf(t, np.minimum(known + dof, finalists * dof)[:, None])
    return np.asarray((p < level_of(scores)) & (differences.std(axis=2) > COARSE))


def inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = value for x by Newton's method, as limma does."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-8 * x:
            break
    return x


def hierarchical(scores: Array) -> NDArray[np.bool_]:
    """Claim differences that are positive with 95% probability in a hierarchical normal model."""
    finalists = scores.shape[1] - 1
    seeds = scores.shape[2]
    dof = (finalists + 1) * (seeds - 1)
    within = scores.var(axis=2, ddof=1).mean(axis=1)
    gains = (scores[:, 1:] - scores[:, :1]).mean(axis=2)
    middle = gains.mean(axis=1)
    around = gains - middle[:, None]
    total = np.zeros(len(scores))
    positive = np.zeros(gains.shape)
    # Quantiles of the noise's posterior; the spread of differences has a half-Cauchy prior whose
    # scale is the noise.
    for quantile in (np.arange(12) + 0.5) / 12:
        noise = within * dof / stats.chi2.ppf(quantile, dof) + COARSE**2
        for place in (np.arange(16) + 0.5) / 16:
            spread = noise * math.tan(math.pi / 2 * place) ** 2
            seen = spread + noise / seeds
            seen_middle = spread + noise * (1 + finalists) / seeds
            log = -0.5 * ((finalists - 1) * np.log(seen) + np.log(seen_middle))
            log -= 0.5 * (around**2).sum(axis=1) / seen
            log -= 0.5 * finalists * middle**2 / seen_middle
            kept = spread / seen
            kept_middle = spread / seen_middle
            mean = kept[:, None] * around + (kept_middle * middle)[:, None]
            variance = spread * (1 - kept) * (1 - 1 / finalists)
            variance += spread * (1 - kept_middle) / finalists
            weight = np.exp(log + 0.5 * finalists * np.log(noise))
            total += weight
            positive += weight[:, None] * special.ndtr(mean / np.sqrt(variance)[:, None])
    varied = scores.std(axis=2).max(axis=1) > COARSE
    return np.asarray(varied[:, None] & (positive > (1 - SIGNIFICANCE_LEVEL) * total[:, None]))


def improvement_probability(scores: Array) -> NDArray[np.bool_]:
    """Claim if the bootstrap's lower bound of the probability of improvement exceeds one half."""
    seeds = scores.shape[2]
    generator = np.random.default_rng(0)
    claims = np.zeros((len(scores), scores.shape[1] - 1), bool)
    for case, rows in enumerate(scores):
        base = rows[0][generator.integers(0, seeds, (_RESAMPLES, seeds))]
        for finalist, row in enumerate(rows[1:]):
            ours = row[generator.integers(0, seeds, (_RESAMPLES, seeds))]
            above = np.sign(ours[:, :, None] - base[:, None, :]).mean(axis=(1, 2))
            claims[case, finalist] = np.quantile(above, level_of(scores)) > 0
    return claims


def bca(scores: Array) -> NDArray[np.bool_]:
    """Return claims by the lower bound of a BCa interval (Efron 1987) of the difference of
    means.
    """
    seeds = scores.shape[2]
    generator = np.random.default_rng(0)
    claims = np.zeros((len(scores), scores.shape[1] - 1), bool)
    for case, rows in enumerate(scores):
        base = rows[0][generator.integers(0, seeds, (_RESAMPLES, seeds))].mean(axis=1)
        for finalist, row in enumerate(rows[1:]):
            ours = row[generator.integers(0, seeds, (_RESAMPLES, seeds))].mean(axis=1)
            apart = ours - base
            observed = row.mean() - rows[0].mean()
            below = np.clip((apart < observed).mean(), 1 / _RESAMPLES, 1 - 1 / _RESAMPLES)
            bias = special.ndtri(below)
            influence = np.concatenate([row - row.mean(), rows[0].mean() - rows[0]])
            squares = float((influence**2).sum())
            if squares <= COARSE**2:
                continue
            acceleration = float((influence**3).sum()) / (6 * squares**1.5)
            z = bias + special.ndtri(level_of(scores))
            place = special.ndtr(bias + z / (1 - acceleration * z))
            claims[case, finalist] = np.quantile(apart, place) > 0
    return claims


def mann_whitney(scores: Array) -> NDArray[np.bool_]:
    theirs = np.broadcast_to(scores[:, :1], scores[:, 1:].shape)
    return np.asarray(
        stats.mannwhitneyu(scores[:, 1:], theirs, axis=2, alternative="greater").pvalue
        < level_of(scores)
    )


def bootstrap(scores: Array) -> NDArray[np.bool_]:
    """Return claims by the lower bound of a percentile interval; the seeds of each configuration
    are drawn separately.
    """
    seeds = scores.shape[2]
    generator = np.random.default_rng(0)
    claims = np.zeros((len(scores), scores.shape[1] - 1), bool)
    for case, rows in enumerate(scores):
        means = [
            row[generator.integers(0, seeds, (_RESAMPLES, seeds))].mean(axis=1) for row in rows
        ]
        apart = np.array(means[1:]) - means[0]
        claims[case] = np.quantile(apart, level_of(scores), axis=1) > 0
    return claims


def bars_apart(scores: Array) -> NDArray[np.bool_]:
    mean = scores.mean(axis=2)
    sd = scores.std(axis=2, ddof=1)
    return np.asarray(mean[:, 1:] - sd[:, 1:] > mean[:, :1] + sd[:, :1])


TESTS: dict[str, Test] = {
    "verdict": verdict,
    "paired t test": paired,
    "paired t, Holm": paired_holm,
    "moderated t": moderated,
    "Welch": welch,
    "Welch at f/(f+2)": penalized_welch,
    "paired t at f/(f+2)": penalized_paired,
    "half own variance": half_own,
    "Mann-Whitney": mann_whitney,
    "permutation": permutation,
    "bootstrap": bootstrap,
    "BCa bootstrap": bca,
    "P(improvement)": improvement_probability,
    "hierarchical Bayes": hierarchical,
    "all seeds better": all_better,
    "bars apart": bars_apart,
    "better mean": better_mean,
}

BOOTSTRAPS = ("bootstrap", "BCa bootstrap", "P(improvement)")


@dataclass
class Measured:
    """The claims of a test in one layout."""

    levels: list[float] = field(default_factory=list)  # false claims at equal means, by study
    # false claims about the other finalists if one of them is better, by study
    beside: list[float] = field(default_factory=list)
    finds_one: list[float] = field(default_factory=list)  # claims about this better one, by study
    claims: list[float] = field(default_factory=list)  # cases with a claim on real scores, by study
    claimed: int = 0  # cases with a claim on real differences
    wrong: int = 0  # claims about a finalist that is not better on unseen seeds
    total: int = 0  # claims on real differences

    @property
    def holds(self) -> bool:
        """Whether both rates of false claims are within bounds: at most 5% on average within a
        standard error, and at most ``WORST`` in every study.
        """
        rates = [self.levels] + ([self.beside] if self.beside else [])
        return all(
            np.mean(each) - error_of(each) <= SIGNIFICANCE_LEVEL and max(each) <= WORST
            for each in rates
        )


def cases_of(name: str, cases: int) -> int:
    """Return the number of cases for a test. Bootstraps take seconds per case, so they get
    fewer.
    """
    return min(cases, _CASES_OF_BOOTSTRAPS) if name in BOOTSTRAPS else cases


def error_of(rates: Sequence[float]) -> float:
    """Return the standard error of a mean over studies."""
    return float(np.std(rates, ddof=1) / np.sqrt(len(rates)))


def measured(test: Test, finalists: int, seeds: int, cases: int) -> Measured:
    measurement = Measured()
    for number, table in enumerate(studies().values()):
        generator = np.random.default_rng(number)
        centered = drawn(table - table.mean(axis=1, keepdims=True), finalists, cases, generator)
        equal = widened(centered[:, :, :seeds])
        measurement.levels.append(float(test(equal).any(axis=1).mean()))
        equal[:, 1] += BETTER
        claims = test(equal)
        measurement.finds_one.append(float(claims[:, 0].mean()))
        if finalists > 1:
            measurement.beside.append(float(claims[:, 1:].any(axis=1).mean()))
        real = drawn(table, finalists, cases, generator)
        claims = test(real[:, :, :seeds])
        unseen = real[:, :, seeds:].mean(axis=2)
        measurement.claims.append(float(claims.any(axis=1).mean()))
        measurement.claimed += int(claims.any(axis=1).sum())
        measurement.wrong += int((claims & (unseen[:, 1:] <= unseen[:, :1])).sum())
        measurement.total += int(claims.sum())
    return measurement


def draw(levels: dict[str, list[float]], finds: dict[str, float]) -> go.Figure:
    """Plot how often each test claims an improvement at equal means, from the mean of the studies
    to the worst one.
    """
    drawing = go.Figure()
    for name in reversed(list(levels)):
        rates = 100 * np.array(levels[name])
        color = "#1a7f4b" if name.startswith("verdict") else "#5b6472"
        row = f"{name}  (finds {finds[name]:.0f}%)"
        drawing.add_scatter(
            x=[rates.mean(), rates.max()], y=[row, row], mode="lines", line={"color": color}
        )
        drawing.add_scatter(
            x=[rates.mean()], y=[row], mode="markers", marker={"color": color, "size": 11}
        )
    drawing.add_vline(x=100 * SIGNIFICANCE_LEVEL, line={"color": "#c0392b", "dash": "dot"})
    drawing.update_layout(
        height=380, showlegend=False, font={"size": 14}, margin={"l": 10, "r": 20, "t": 20, "b": 50}
    )
    title = "claims at equal means, %: mean of seven studies (dot) to the worst one"
    drawing.update_xaxes(
        title={"text": title, "font": {"size": 14}},
        type="log",
        tickvals=[1, 2, 5, 10, 20, 50, 100],
        range=[0, 2],
        gridcolor="#e5e8ec",
    )
    return drawing


def write_picture(path: Path, cases: int) -> None:
    finalists = 3
    seeds = 5
    measurements = {
        name: measured(test, finalists, seeds, cases_of(name, cases))
        for name, test in TESTS.items()
    }
    levels = {name: measurement.levels for name, measurement in measurements.items()}
    finds = {
        name: 100 * measurement.claimed / (len(measurement.levels) * cases_of(name, cases))
        for name, measurement in measurements.items()
    }
    write_png(draw(levels, finds), path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=400, help="cases per study (default: 400)")
    parser.add_argument(
        "--picture", type=Path, help="plot three finalists on five seeds to this file instead"
    )
    parser.add_argument(
        "--goal", action="store_true", help="compare the tests that keep their level instead"
    )
    parser.add_argument(
        "--shared", action="store_true", help="vary how many seeds arms share instead"
    )
    parser.add_argument(
        "--number", action="store_true", help="compare arms with a known number instead"
    )
    parser.add_argument(
        "--blocks", action="store_true", help="compare the two tests of one finalist instead"
    )
    arguments = parser.parse_args()
    if arguments.blocks:
        print_blocks(arguments.cases)
        return
    if arguments.number:
        print_against_number(arguments.cases)
        return
    if arguments.shared:
        print_shared(arguments.cases)
        return
    cases = arguments.cases
    # Scores of collapsed runs are equal to the last digit; the tests then make no claim.
    warnings.filterwarnings("ignore", message="Precision loss occurred", category=RuntimeWarning)
    if arguments.goal:
        print_goal(cases)
        return
    if arguments.picture is not None:
        write_picture(arguments.picture, cases)
        return
    for finalists, seeds in LAYOUTS:
        measurements = {
            name: measured(test, finalists, seeds, cases_of(name, cases))
            for name, test in TESTS.items()
        }
        print_layout(f"{finalists} x {seeds}", measurements, cases)
    print_rounds(cases)


def print_layout(layout: str, measurements: Mapping[str, Measured], cases: int) -> None:
    """Print a row per test, and the tests that keep their level, in the order of their claims."""
    rows = []
    holding = {}
    for name, measurement in measurements.items():
        finds = 100 * measurement.claimed / (len(measurement.levels) * cases_of(name, cases))
        if measurement.holds:
            holding[name] = finds
        row = [layout, name]
        for rates in (measurement.levels, measurement.beside):
            if rates:
                row += [f"{100 * np.mean(rates):.1f} ± {100 * error_of(rates):.1f}"]
                row += [f"{100 * max(rates):.1f}"]
            else:
                row += ["", ""]
        wrong = 100 * measurement.wrong / max(measurement.total, 1)
        rows.append(
            [*row, f"{100 * np.mean(measurement.finds_one):.1f}", f"{finds:.1f}", f"{wrong:.1f}"]
        )
    headings = ["finalists x seeds", "test", "false at equal means", "worst study"]
    headings += ["false beside a better one", "worst study", "finds that one"]
    print_rows("Real runs, %", [*headings, "real: claims in", "of them wrong"], rows)
    allowed = f"{SIGNIFICANCE_LEVEL:.0%} on average and {WORST:.0%} in every study"
    finders = sorted(holding.items(), key=lambda finder: -finder[1])
    listed = ", ".join(f"{name} ({finds:.1f})" for name, finds in finders) or "none"
    print(f"{layout}, holds {allowed}, the one that finds most first: {listed}", flush=True)


@dataclass
class GoalRow:
    """A layout's row in the table of the goal: the verdict, and the other tests that keep their
    level.
    """

    layout: str
    verdict: str
    rivals: dict[str, str]  # test -> claims and detections in excess of the verdict
    missed: list[str]  # tests that detect more than the verdict


def goal_row(finalists: int, seeds: int, cases: int, tests: Mapping[str, Test]) -> GoalRow:
    """Measure the verdict in a layout, and the other tests that keep their level."""
    ours = measured(verdict, finalists, seeds, cases)
    held = "" if ours.holds else ", which does not hold"
    found = f"{100 * np.mean(ours.claims):.1f} / {100 * np.mean(ours.finds_one):.1f}{held}"
    row = GoalRow(f"{finalists} x {seeds}", found, {}, [])
    for name, test in tests.items():
        rival = measured(test, finalists, seeds, cases_of(name, cases))
        if name == "verdict" or not rival.holds or not rival.claimed:
            continue
        if name in BOOTSTRAPS:  # compare on the same cases
            ours_here = measured(verdict, finalists, seeds, cases_of(name, cases))
        else:
            ours_here = ours
        more = np.subtract(rival.claims, ours_here.claims)
        finds = np.subtract(rival.finds_one, ours_here.finds_one)
        row.rivals[name] = f"{name} {_signed(more)} / {_signed(finds)}"
        if more.mean() > 2 * error_of(more) and finds.mean() >= -2 * error_of(finds):
            row.missed.append(name)
    return row


def print_goal(cases: int) -> None:
    """Print the tests that keep their level in each layout, and how much more than the verdict they
    detect, as a Markdown table.

    The goal is that none of them makes more claims on real differences by more than two standard
    errors over studies, without detecting a single better finalist less often by as much.
    """
    print(
        "| Finalists x seeds | verdict: claims / finds one | rivals that hold, minus the verdict |"
    )
    print("|---|---|---|")
    missed = []
    for finalists, seeds in LAYOUTS:
        if seeds < MIN_SEEDS:  # the verdict makes no claim with so few seeds
            continue
        row = goal_row(finalists, seeds, cases, TESTS)
        cells = "; ".join(row.rivals.values()) or "none"
        print(f"| {row.layout} | {row.verdict} | {cells} |", flush=True)
        missed += [f"{row.layout} ({name})" for name in row.missed]
    print(f"\nA rival that holds finds more: {', '.join(missed) or 'nowhere'}")


def _signed(differences: Sequence[float] | Array) -> str:
    """Return a mean over studies with its standard error, in %."""
    return f"{100 * np.mean(differences):+.1f} ± {100 * error_of(list(differences)):.1f}"


def rounds_on(table: Array, design: Design, cases: int, number: int) -> tuple[float, float, float]:
    """Return the fractions of cases with a false claim and with a claim on real differences, and
    the first finalist's mean number of seeds on real differences.
    """
    generator = np.random.default_rng(number)
    centered = table - table.mean(axis=1, keepdims=True)
    equal = widened(drawn(centered, design.finalists, cases, generator)[:, :, :ROUNDS])
    real = drawn(table, design.finalists, cases, generator)[:, :, :ROUNDS]
    false = in_rounds(design, equal)[0] == 1
    decided, seeds, _ = in_rounds(design, real)
    claimed = (decided == 1).any(axis=1)
    return float(false.any(axis=1).mean()), float(claimed.mean()), float(seeds.mean())


def print_rounds(cases: int) -> None:
    """Print false claims, claims and seeds of one analysis at ``ROUNDS`` seeds, and of rounds up to
    this number.
    """
    rows = []
    for finalists in (1, 2, 3):
        for name, analyses in (("one analysis", (ROUNDS,)), ("rounds", schedule_analyses(ROUNDS))):
            design = Design(analyses, finalists, 0.0, *boundaries(analyses, finalists))
            studied = [
                rounds_on(table, design, cases, number)
                for number, table in enumerate(studies().values())
            ]
            levels, finds, seeds = zip(*studied, strict=True)
            error = 100 * np.std(levels, ddof=1) / np.sqrt(len(levels))
            row = [f"{finalists}", name, f"{100 * np.mean(levels):.1f} ± {error:.1f}"]
            row += [
                f"{100 * max(levels):.1f}",
                f"{100 * np.mean(finds):.1f}",
                f"{np.mean(seeds):.1f}",
            ]
            rows.append(row)
    headings = ["finalists", "up to 8 seeds", "false at equal means", "worst study"]
    print_rows("Rounds on real runs, %", [*headings, "real: claims in", "seeds"], rows)


# numbers of finalists, of runs per arm, and of seeds that baseline and finalist share
SHARED_LAYOUTS = [
    (1, 3, 3), (1, 5, 5), (3, 3, 3), (3, 5, 5), (8, 5, 5),
    (1, 5, 3), (1, 8, 4), (3, 5, 3), (3, 6, 4), (8, 6, 4),
    (1, 3, 0), (1, 5, 0), (1, 8, 0), (2, 5, 0), (3, 3, 0), (3, 5, 0), (8, 5, 0),
]  # fmt: skip


def drawn_apart(
    table: Array, finalists: int, runs: int, shared: int, generator: np.random.Generator
) -> Array:
    """Draw the scores of one case, [C, runs], of which the first ``shared`` are on common seeds.

    The other seeds of each arm are drawn separately, so they are only labels of its runs.
    """
    chosen = generator.choice(len(table), finalists + 1, replace=False)
    order = generator.permutation(SEEDS)
    rows = []
    for configuration in chosen:
        rest = generator.permutation(order[shared:])[: runs - shared]
        rows.append(table[configuration, np.concatenate([order[:shared], rest])])
    return np.array(rows)


def claims_any(scores: Array, shared: int, pairing: Pairing = "auto") -> bool:
    """Return whether `compare_arms` finds an arm of one case, [C, runs], better than the first."""
    runs = scores.shape[1]
    arms = {}
    for place, row in enumerate(scores):
        seeds = [seed if seed < shared else (place, seed) for seed in range(runs)]
        arms[str(place)] = dict(zip(seeds, map(float, row), strict=True))
    comparison = compare_arms(arms, "0", pairing)
    return any(estimate.better for estimate in comparison.differences)


def claims_of_paths(
    finalists: int, runs: int, shared: int, cases: int, paths: Sequence[Pairing]
) -> dict[Pairing, tuple[list[float], list[float]]]:
    """Return way of comparing -> rates of claims by study, at equal means and on real differences.
    All ways see the same cases.
    """
    rates: dict[Pairing, tuple[list[float], list[float]]] = {path: ([], []) for path in paths}
    for number, table in enumerate(studies().values()):
        generator = np.random.default_rng(number)
        centered = table - table.mean(axis=1, keepdims=True)
        false = dict.fromkeys(paths, 0)
        found = dict.fromkeys(paths, 0)
        for _ in range(cases):
            equal = drawn_apart(centered, finalists, runs, shared, generator)
            equal = widened(equal[None])[0]
            real = drawn_apart(table, finalists, runs, shared, generator)
            for path in paths:
                false[path] += claims_any(equal, shared, path)
                found[path] += claims_any(real, shared, path)
        for path in paths:
            rates[path][0].append(false[path] / cases)
            rates[path][1].append(found[path] / cases)
    return rates


# numbers of arms and of runs per arm
NUMBER_LAYOUTS = [(1, 3), (1, 5), (1, 8), (3, 3), (3, 5), (8, 3), (8, 5)]


def print_against_number(cases: int) -> None:
    """Print false positives of arms that are compared with their own mean as a known number, and
    how often an arm that is better by ``BETTER`` is detected.
    """
    rows = []
    for arms, runs in NUMBER_LAYOUTS:
        levels = []
        finds = []
        for number, table in enumerate(studies().values()):
            generator = np.random.default_rng(number)
            centered = table - table.mean(axis=1, keepdims=True)
            scores = widened(drawn(centered, arms, cases, generator)[:, 1:, :runs])
            false = found = 0
            for case in scores:
                false += any(_better_than_number(case))
                case[0] += BETTER
                found += _better_than_number(case)[0]
            levels.append(false / cases)
            finds.append(found / cases)
        row = [f"{arms} x {runs}", f"{100 * np.mean(levels):.1f} ± {100 * error_of(levels):.1f}"]
        rows.append([*row, f"{100 * max(levels):.1f}", f"{100 * np.mean(finds):.1f}"])
    headings = ["arms x runs", "false at equal means", "worst study", "finds one better"]
    print_rows("Against a number, %", headings, rows)


def _better_than_number(scores: Array) -> list[bool]:
    """Return which arms, [C, runs], `compare_with_number` finds better than 0."""
    arms = {str(place): dict(enumerate(map(float, row))) for place, row in enumerate(scores)}
    comparison = compare_with_number(arms, 0.0)
    return [estimate.better for estimate in comparison.differences]


BANK = Path(__file__).parent / "data" / "gate_bank" / "scores.csv"
_SHIFT = 2.0  # true gain of simulated scores, in standard deviations


def bank() -> Array:
    """Return the scores of the training runs of `research.gate_bank`, [C, S], scaled to unit
    variance.
    """
    rows = pd.read_csv(BANK)
    table = rows.pivot_table(index=list(rows.columns[:-2]), columns="seed", values="accuracy")
    scores = table.dropna().to_numpy(float)
    return (scores - scores.mean()) / scores.std()


def drawn_of(
    table: Array, arms: int, seeds: int, cases: int, generator: np.random.Generator
) -> Array:
    """Draw scores of arms on common seeds, [N, arms, seeds]."""
    chosen = np.array([generator.choice(len(table), arms, replace=False) for _ in range(cases)])
    order = generator.permuted(np.tile(np.arange(table.shape[1]), (cases, 1)), axis=1)
    return np.take_along_axis(table[chosen], order[:, None, :seeds], axis=2)


def print_blocks(cases: int) -> None:
    """Print false positives and claims of the two tests of one finalist: on runs without an effect
    of the seed (the seven studies), on runs with one (the bank), and on simulated scores.
    """
    tests: dict[str, Test] = {"Welch": penalized_welch, "paired": penalized_paired}
    rows = []
    for seeds in (3, 5, 8):
        for name, tables in (("seven studies", list(studies().values())), ("bank", [bank()])):
            measured_rates: dict[str, tuple[list[float], list[float]]] = {
                test: ([], []) for test in tests
            }
            for number, table in enumerate(tables):
                generator = np.random.default_rng(number)
                centered = table - table.mean(axis=1, keepdims=True)
                equal = drawn_of(centered, 2, seeds, cases, generator)
                fraction = seeds / table.shape[1]
                shift = equal.mean(axis=2, keepdims=True) * (1 / np.sqrt(1 - fraction) - 1)
                real = drawn_of(table, 2, seeds, cases, generator)
                for test, claims in tests.items():
                    measured_rates[test][0].append(float(claims(equal + shift).mean()))
                    measured_rates[test][1].append(float(claims(real).mean()))
            for test, (false, found) in measured_rates.items():
                rate = f"{100 * np.mean(false):.1f}"
                if len(false) > 1:
                    rate += f" ± {100 * error_of(false):.1f}"
                rows.append([name, f"1 x {seeds}", test, rate, f"{100 * np.mean(found):.1f}"])
        for correlation in (0.0, 0.25, 0.5, 0.75):
            generator = np.random.default_rng(1)
            scores = math.sqrt(1 - correlation) * generator.standard_normal((cases, 2, seeds))
            scores += math.sqrt(correlation) * generator.standard_normal((cases, 1, seeds))
            better = scores + np.array([[0.0], [_SHIFT]])
            for test, claims in tests.items():
                false_rate = percent(claims(scores)[:, 0])
                cells = [test, false_rate, percent(claims(better)[:, 0])]
                rows.append([f"normal, correlation {correlation:g}", f"1 x {seeds}", *cells])
    headings = ["scores", "finalists x seeds", "test", "false at equal means", "claims"]
    print_rows("One finalist, %", headings, rows)


def print_shared(cases: int) -> None:
    """Print false positives and claims on real differences if all, some or no seeds are shared. The
    comparison is decided by the seeds, or set by --paired and --unpaired.
    """
    rows = []
    for finalists, runs, shared in SHARED_LAYOUTS:
        paths: list[Pairing] = ["auto", "paired", "unpaired"] if shared else ["auto", "unpaired"]
        rates = claims_of_paths(finalists, runs, shared, cases, paths)
        for path, (levels, finds) in rates.items():
            row = [f"{finalists} x {runs}", str(shared), path]
            row += [f"{100 * np.mean(levels):.1f} ± {100 * error_of(levels):.1f}"]
            rows.append([*row, f"{100 * max(levels):.1f}", f"{100 * np.mean(finds):.1f}"])
    headings = ["finalists x runs", "shared seeds", "compared", "false at equal means"]
    headings += ["worst study", "real: claims in"]
    print_rows("All, some and no shared seeds, %", headings, rows)


if __name__ == "__main__":
    main()
