"""How often is the verdict of a sweep wrong, and how often does it detect a true improvement, with
each of its rules?

    python -m research.verdict_errors                 # every table, some minutes on one core
    python -m research.verdict_errors failed fresh --sweeps 4000

Scores are in standard deviations of one score between seeds; configuration 0 is the baseline. The
tests of a table see the same simulated sweeps, so its rows can be compared. Each rate is printed
with its standard error.

    power      with and without the baseline's own variance; better by 1, 2 and 3 deviations
    noise      false claims for lognormal, Student's t, coarse and unequal noise
    failed     false claims and power if seeds fail and are scored as the worst run
    collapse   false claims if only the finalist collapses on rare seeds
    smooth     false claims if noise is smooth in a parameter and the search follows it
    fresh      finalists on fresh seeds, each by its own differences, and by the verdict
    seeds      how often the proposed number of fresh seeds detects a gain; the stated rate
    alike      power for the gain that is stated as detectable, with equal and unequal noise
    skewed     coverage of a paired t interval's bounds for accuracies near 0 and 1
"""

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dashboards.statistics.dunnett import critical_value
from dashboards.statistics.failures import CLAIMS, Claim
from dashboards.statistics.guards import Variances, difference_noise
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL, level
from dashboards.statistics.problems import split
from dashboards.statistics.seed_noise import BLOCKS, BLOCKS_OF_ONE
from dashboards.statistics.verdict import COLLAPSE_LEVEL, Tested, Verdict, verdict
from research.evaluation_intervals import CORRELATION
from research.tables import percent, print_rows

Array = NDArray[np.float64]
COLLAPSE = 5  # how much lower a collapsed score is, in standard deviations
GRID = [(4, 2), (10, 2), (40, 2), (4, 3), (10, 3), (40, 3), (10, 5)]  # configurations, seeds


@dataclass(frozen=True)
class Rule:
    """A decision rule, applied to many sweeps at once."""

    own_guard: bool = True
    baseline_guard: bool = True
    own_counts_half: bool = True  # False for interim analyses

    def __call__(self, scores: Array, answers: Array | None = None) -> tuple[Array, Array]:
        """Return whether each sweep [N, C, S] claims a gain, and the best configuration by its
        verdict.
        """
        opposed = [counted(scores, claim) for claim in CLAIMS]
        gains = np.minimum(*[(y[:, 1:] - y[:, :1]).mean(axis=2) for y in opposed])
        shown = self.better(scores, answers)
        claims = shown.any(axis=1)
        candidates = np.where(claims[:, None] & ~shown, -np.inf, gains)
        return claims, 1 + candidates.argmax(axis=1)

    def better(self, scores: Array, answers: Array | None = None) -> NDArray[np.bool_]:
        """Return which configurations of each sweep [N, C, S] are called better, [N, C - 1]."""
        against_better, against_worse = (
            self._above_0(counted(scores, claim), answers) for claim in CLAIMS
        )
        return against_better & against_worse

    def _above_0(self, y: Array, answers: Array | None) -> NDArray[np.bool_]:
        """Return which configurations have an interval above 0; the scores must not contain failed
        seeds.
        """
        configurations, seeds = y.shape[1:]
        gains = (y[:, 1:] - y[:, :1]).mean(axis=2)
        if configurations == 2 and self.own_guard and self.own_counts_half:
            return own_test(y)[:, None] & (squares(y)[:, None] > 1e-18)
        critical = critical_value(configurations - 1, (configurations - 1) * (seeds - 1))
        shown = np.sqrt(seeds) * gains > critical * self.sds(y, answers)
        # equal scores on all seeds mean that scores are coarse, not that there is no noise
        return np.asarray(shown & (squares(y)[:, None] > 1e-18))

    def sds(self, y: Array, answers: Array | None = None) -> Array:
        """Return the standard deviation of each configuration's difference on one seed, [N, C - 1];
        answers are [N, C, S, P].
        """
        sweeps, configurations, seeds = y.shape
        dof = (configurations - 1) * (seeds - 1)
        others_dof = (configurations - 2) * (seeds - 1)
        base = None
        others = None
        if self.baseline_guard and others_dof:
            others = squares(y[:, 1:]) / others_dof
            base = (y[:, 0] - y[:, 1:].mean(axis=1)).var(axis=1, ddof=1) - others / (
                configurations - 1
            )
            base = np.maximum(base, 0)
        blocks = seeds_are_blocks(y)
        of_runs = y.var(axis=2, ddof=1)
        sds = np.empty((sweeps, configurations - 1))
        for place in range(1, configurations):
            variances = Variances(
                pooled=squares(y) / dof,
                dof=dof,
                own=(y[:, place] - y[:, 0]).var(axis=1, ddof=1)
                if self.own_guard
                else np.zeros(sweeps),
                own_dof=seeds - 1 if self.own_guard else 0,
                base=base,
                base_dof=seeds - 1,
                others=others,
                others_dof=others_dof,
            )
            if self.own_guard:
                unpaired = np.where(blocks, 0.0, of_runs[:, place] + of_runs[:, 0])
                variances = replace(variances, unpaired=unpaired)
            if answers is not None:
                pairs = zip(answers[:, place], answers[:, 0], strict=True)
                evaluation = np.array([split(ours, theirs).evaluation for ours, theirs in pairs])
                dofs = (seeds - 1) * (answers.shape[3] - 1)
                variances = replace(variances, evaluation=evaluation, evaluation_dof=dofs)
            sds[:, place - 1] = difference_noise(
                variances, configurations - 1, own_counts_half=self.own_counts_half
            )
        return sds


def counted(scores: Array, claim: Claim) -> Array:
    """Impute failed seeds so that they oppose a claim, with the worst and the best score of their
    sweep.
    """
    worst = np.nanmin(scores, axis=(1, 2))
    best = np.nanmax(scores, axis=(1, 2))
    of_arm, of_baseline = (worst, best) if claim == "better" else (best, worst)
    imputed = np.broadcast_to(of_arm[:, None, None], scores.shape).copy()
    imputed[:, 0] = of_baseline[:, None]
    return np.where(np.isnan(scores), imputed, scores)


POOLED = Rule(baseline_guard=False)
AFTER = Rule()
INTERIM = Rule(own_counts_half=False)


def squares(y: Array) -> Array:
    """Return the residual sum of squares after the effects of configuration and seed, [N]."""
    residuals = (
        y
        - y.mean(axis=2, keepdims=True)
        - y.mean(axis=1, keepdims=True)
        + y.mean(axis=(1, 2), keepdims=True)
    )
    return (residuals**2).sum(axis=(1, 2))


def seeds_are_blocks(y: Array) -> NDArray[np.bool_]:
    """Return whether the scores of each sweep [N, C, S] clearly depend on the seed, [N]."""
    configurations, seeds = y.shape[1:]
    dof = (configurations - 1) * (seeds - 1)
    means = y.mean(axis=1)
    of_seeds = configurations * ((means - means.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (of_seeds / (seeds - 1)) / (squares(y) / dof)
    ratio = np.nan_to_num(ratio, nan=0.0)
    return np.asarray(stats.f.sf(ratio, seeds - 1, dof) < BLOCKS)


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape)


def lognormal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return (np.exp(generator.standard_normal(shape)) - math.exp(0.5)) / math.sqrt(
        (math.e - 1) * math.e
    )


def student(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_t(3, shape) / math.sqrt(3)


def coarse(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return scores in steps as large as their standard deviation."""
    return np.round(generator.standard_normal(shape))


def one_noisier(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = generator.standard_normal(shape)
    values[:, 1] *= 3
    return values


def noisy_baseline(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = generator.standard_normal(shape)
    values[:, 0] *= 3
    return values


def collapse(sweeps: int) -> None:
    """Print false claims about a finalist that collapses on rare seeds, but has the baseline's mean
    over all seeds.
    """
    rows = []
    for rate, seeds in itertools.product((0.02, 0.05, 0.1, 0.2), (3, 5, 8, 16)):
        generator = np.random.default_rng(12)
        scores = generator.standard_normal((sweeps, 2, seeds))
        collapsed = generator.random((sweeps, seeds)) < rate
        scores[:, 1] += COLLAPSE * (rate - collapsed)
        shown, _ = AFTER(scores)
        differences = scores[shown, 1] - scores[shown, 0]
        fraction = np.median(differences, axis=1) / differences.mean(axis=1)
        unseen = 1 - COLLAPSE_LEVEL ** (1 / seeds)
        cells = [
            percent(shown),
            percent((fraction <= 0.5) | (fraction >= 2)),
            f"{100 * unseen:.0f}",
        ]
        rows.append([f"{100 * rate:g}", str(seeds), *cells])
    headings = ["collapses in", "seeds", "false claims", "median contradicts", "not excluded"]
    print_rows("Rare collapse of the finalist alone, %", headings, rows)


def rates(test: Rule, scores: Array, better: int | None = None) -> str:
    shown, best = test(scores)
    return percent(shown if better is None else shown & (best == better))


def power(sweeps: int) -> None:
    rows = []
    for configurations, seeds in GRID:
        for effect in (0, 1, 2, 3):
            scores = normal(np.random.default_rng(effect), (sweeps, configurations, seeds))
            scores[:, 1] += effect
            better = 1 if effect else None
            percentages = [rates(test, scores, better) for test in (POOLED, AFTER)]
            rows.append([f"{configurations} x {seeds}", f"{effect} sd", *percentages])
    headings = [
        "configurations x seeds",
        "better by",
        "pooled noise",
        "and the baseline's own variance",
    ]
    print_rows("Found (at 0 sd: false claims), %", headings, rows)


def noise(sweeps: int) -> None:
    bare = Rule(own_guard=False, baseline_guard=False)
    rows = []
    for kind in (normal, lognormal, student, coarse, one_noisier, noisy_baseline):
        for configurations, seeds in GRID:
            scores = kind(np.random.default_rng(1), (sweeps, configurations, seeds))
            percentages = [rates(test, scores) for test in (bare, POOLED, AFTER)]
            rows.append([kind.__name__, f"{configurations} x {seeds}", *percentages])
    headings = [
        "noise",
        "configurations x seeds",
        "no guard",
        "pooled noise",
        "and the baseline's own variance",
    ]
    print_rows("False claims, %", headings, rows)


def failed(sweeps: int) -> None:
    """Print false claims and power with failed seeds, which are scored as in the verdict."""
    rows = []
    for kind, (configurations, seeds) in itertools.product(
        FAILURES, [(3, 3), (3, 8), (2, 16), (10, 3)]
    ):
        cells = []
        for effect in (0.0, 2.0):
            generator = np.random.default_rng(3)
            scores = generator.standard_normal((sweeps, configurations, seeds))
            scores[:, 1] += effect
            scores[FAILURES[kind](generator, scores)] = math.nan
            scores = scores[np.isfinite(scores).any(axis=2).all(axis=1)]
            cells.append(percent(AFTER(scores)[0]))
        rows.append([kind, f"{configurations} x {seeds}", *cells])
    headings = ["which seeds fail", "configurations x seeds", "false claims", "found at 2 sd"]
    print_rows("Failed seeds, %", headings, rows)


def by_chance(fraction: float) -> Callable[[np.random.Generator, Array], Array]:
    return lambda generator, scores: generator.random(scores.shape) < fraction


def unluckiest(
    fraction: float, *, baseline: bool, others: bool
) -> Callable[[np.random.Generator, Array], Array]:
    """Return a function that marks the seeds with the lowest residuals as failed: this fraction of
    the baseline's seeds, of the others', or of all.
    """

    def failing(_: np.random.Generator, scores: Array) -> Array:
        unlucky = scores - scores.mean(axis=2, keepdims=True) < stats.norm.ppf(fraction)
        unlucky[:, 0] &= baseline
        unlucky[:, 1:] &= others
        return np.asarray(unlucky)

    return failing


FAILURES: dict[str, Callable[[np.random.Generator, Array], Array]] = {
    "none": by_chance(0.0),
    "5% of all, by chance": by_chance(0.05),
    "the unluckiest tenth of all": unluckiest(0.1, baseline=True, others=True),
    "the unluckiest third of all": unluckiest(1 / 3, baseline=True, others=True),
    "of the others, the unluckiest third": unluckiest(1 / 3, baseline=False, others=True),
    "of the baseline, the unluckiest third": unluckiest(1 / 3, baseline=True, others=False),
}


def smooth(sweeps: int) -> None:
    """Print false claims of a search by hill climbing in one parameter, with noise that is a smooth
    function of the parameter on each seed.
    """
    rows = []
    for configurations, seeds in [(10, 3), (20, 3), (40, 3), (40, 5)]:
        for kind in ("random", "adaptive"):
            noise_of = smooth_noise(np.random.default_rng(4), sweeps, seeds, length=0.15)
            places, scores = search(
                noise_of, sweeps, configurations, seeds, adaptive=kind == "adaptive"
            )
            shown, best = AFTER(scores)
            chosen = places[np.arange(sweeps), best]
            fresh_noise = smooth_noise(np.random.default_rng(5), sweeps, 3, length=0.15)
            fresh = np.stack([fresh_noise(np.zeros(sweeps)), fresh_noise(chosen)], axis=1)
            search_scores = np.stack([scores[:, 0], scores[np.arange(sweeps), best]], axis=1)
            confirmed = own_test(fresh, search_scores)
            rows.append([f"{configurations} x {seeds}", kind, percent(shown), percent(confirmed)])
    headings = [
        "configurations x seeds",
        "proposals",
        "on the search's seeds",
        "its best on 3 fresh seeds",
    ]
    print_rows("False claims with noise smooth in the parameter, %", headings, rows)


def smooth_noise(
    generator: np.random.Generator, sweeps: int, seeds: int, length: float
) -> Callable[[Array], Array]:
    """Return noise of unit variance as a function of the parameter, [N] -> [N, S]; half of its
    variance is smooth.
    """
    features = 32
    frequencies = generator.standard_normal((sweeps, seeds, features)) / length
    phases = generator.uniform(0, 2 * math.pi, (sweeps, seeds, features))

    def at(place: Array) -> Array:
        waves = np.cos(frequencies * place[:, None, None] + phases)
        rough = generator.standard_normal((sweeps, seeds))
        return np.asarray(
            np.sqrt(2 / features) * waves.sum(axis=2) * math.sqrt(0.5) + rough * math.sqrt(0.5)
        )

    return at


def search(
    noise_of: Callable[[Array], Array],
    sweeps: int,
    configurations: int,
    seeds: int,
    *,
    adaptive: bool,
) -> tuple[Array, Array]:
    """Return points [N, C] and scores [N, C, S] of a search: the baseline at 0, up to ten random
    proposals, then steps from the best point.
    """
    generator = np.random.default_rng(6)
    places = np.zeros((sweeps, configurations))
    scores = np.zeros((sweeps, configurations, seeds))
    scores[:, 0] = noise_of(places[:, 0])
    for number in range(1, configurations):
        place = generator.uniform(0, 1, sweeps)
        if adaptive and number > min(10, configurations // 2):
            means = scores[:, :number].mean(axis=2)
            best = places[np.arange(sweeps), means.argmax(axis=1)]
            place = np.clip(best + 0.1 * generator.standard_normal(sweeps), 0, 1)
        places[:, number] = place
        scores[:, number] = noise_of(place)
    return places, scores


def own_test(
    fresh: Array, search: Array | None = None, *, blocks: bool | None = None
) -> NDArray[np.bool_]:
    """Return whether a finalist is better than the baseline on fresh seeds, by the test of its
    verdict.

    Args:
        fresh: scores of baseline and finalist, [N, 2, S].
        search: their scores on the search's seeds, [N, 2, M], which are added to the noise
            estimate.
        blocks: whether seeds are blocks; None: decided by an F test.
    """
    stages = [fresh] if search is None else [fresh, search]
    dof = sum(stage.shape[2] - 1 for stage in stages)
    own = np.zeros(len(fresh))
    of_runs = np.zeros((len(fresh), 2))
    of_seeds = np.zeros(len(fresh))
    for stage in stages:
        weight = stage.shape[2] - 1
        own += weight * (stage[:, 1] - stage[:, 0]).var(axis=1, ddof=1) / dof
        of_runs += weight * stage.var(axis=2, ddof=1) / dof
        of_seeds += 2 * weight * stage.mean(axis=1).var(axis=1, ddof=1) / dof
    if blocks is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            blocks = (
                np.nan_to_num(stats.f.sf(of_seeds / (own / 2), dof, dof), nan=1.0) < BLOCKS_OF_ONE
            )
    unpaired = of_runs.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        welch = np.nan_to_num(dof * unpaired**2 / (of_runs**2).sum(axis=1), nan=float(dof))
    dofs = np.where(blocks, dof, welch)
    variance = np.where(blocks, own, unpaired)
    need = stats.t.isf(level(dofs), dofs) * np.sqrt(variance / fresh.shape[2])
    return np.asarray((fresh[:, 1] - fresh[:, 0]).mean(axis=1) > need)


def alone_tests(fresh: Array) -> Array:
    """Return which of several finalists, [N, C, S] with the baseline first, are better by their own
    differences alone.
    """
    finalists = fresh.shape[1] - 1
    seeds = fresh.shape[2]
    differences = fresh[:, 1:] - fresh[:, :1]
    error = differences.std(axis=2, ddof=1) / math.sqrt(seeds)
    return np.asarray(
        differences.mean(axis=2) > stats.t.isf(SIGNIFICANCE_LEVEL / finalists, seeds - 1) * error
    )


def fresh(sweeps: int) -> None:
    """Print rates for finalists on fresh seeds: by their own differences with Bonferroni's
    correction, and by the verdict.
    """
    rows = []
    for finalists, seeds, noisier in itertools.product((1, 3, 8), (3, 5), (1, 3, 10)):
        cells = [str(finalists), str(seeds), f"{noisier}"]
        for gain in (0.0, 2.0):
            scores = np.random.default_rng(8).standard_normal((sweeps, finalists + 1, seeds))
            scores[:, 1] *= noisier
            scores[:, 1] += gain
            alone = alone_tests(scores)
            shown, best = AFTER(scores)
            if gain:
                cells += [percent(alone[:, 0]), percent(shown & (best == 1))]
            else:
                cells += [percent(alone.any(axis=1)), percent(shown)]
        rows.append(cells)
    kinds = ("by its own differences", "the verdict")
    headings = [
        "finalists",
        "fresh seeds",
        "first one is times as noisy",
        *(f"false: {kind}" for kind in kinds),
    ]
    print_rows(
        "Finalists on fresh seeds, %",
        [*headings, *(f"found at 2 sd: {kind}" for kind in kinds)],
        rows,
    )


def seeds_promised(sweeps: int) -> None:
    """Print how often the best configuration is confirmed on the proposed number of fresh seeds: if
    it has the stated gain, and on average over all gains.
    """
    rows = []
    for configurations, seeds, spread in [
        (10, 3, 0.5),
        (10, 3, 1.0),
        (10, 3, 2.0),
        (10, 5, 1.0),
        (4, 3, 1.0),
    ]:
        generator = np.random.default_rng(7)
        numbers = []
        named_gain = []
        any_gain = []
        for _ in range(sweeps // 4):
            gains = np.append(0.0, spread * generator.standard_normal(configurations - 1))
            scores = gains[:, None] + generator.standard_normal((configurations, seeds))
            result = verdict(named(scores), "c0")
            if not isinstance(result, Tested):
                continue
            number = result.confirmation_seeds
            if number is None:
                continue
            place = int(result.best[1:])
            fresh = generator.standard_normal((2, number))
            search = scores[[0, place]][None]
            numbers.append(number)
            for gain, outcomes in ((result.shrunken, named_gain), (gains[place], any_gain)):
                better = fresh + np.array([[0.0], [gain]])
                outcomes.append(own_test(better[None], search)[0])
        fraction = f"{100 * len(numbers) / (sweeps // 4):.0f}"
        chances = percent(named_gain), percent(any_gain)
        rows.append(
            [
                f"{configurations} x {seeds}",
                f"{spread:g} sd",
                fraction,
                f"{np.median(numbers):.0f}",
                *chances,
            ]
        )
    headings = ["configurations x seeds", "gains", "proposed in, %", "median seeds"]
    headings += ["found, had it the gain named, %", "found over all gains, %"]
    print_rows("Fresh seeds proposed for the best, true gains normal around 0", headings, rows)


def collapsing(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return scores of unit variance, of which one in ten is 5 standard deviations lower."""
    values = generator.standard_normal(shape) - 5 * (generator.random(shape) < 0.1)
    return values / math.sqrt(1 + 25 * 0.09)


def alike(sweeps: int) -> None:
    """Print the power for the gain that each verdict states as detectable."""
    rows = []
    for kind, (configurations, seeds) in itertools.product(
        (normal, collapsing, one_noisier, noisy_baseline), [(4, 3), (10, 3), (10, 5)]
    ):
        generator = np.random.default_rng(9)
        hits = []
        for _ in range(sweeps // 4):
            noise_of = kind(generator, (1, configurations, seeds))[0]
            stated = verdict(named(noise_of), "c0")
            if not isinstance(stated, Tested):
                continue
            effect = stated.detectable
            again = kind(generator, (1, configurations, seeds))[0]
            again[1] += effect
            hit = verdict(named(again), "c0")
            hits.append(claims(hit) and hit.best == "c1")
        rows.append([kind.__name__, f"{configurations} x {seeds}", percent(hits)])
    headings = ["noise", "configurations x seeds", "found, %"]
    print_rows("The gain stated as found 8 times in 10", headings, rows)


def skewed(sweeps: int) -> None:
    """Print the coverage of intervals for the difference of two accuracies. Problems are as in
    `evaluation_intervals`, and have the same order of difficulty for both.
    """
    rows = []
    sizes = ((100, 1), (30, 4))
    accuracies = ((0.01, 0.05), (0.5, 0.56), (0.95, 0.99))
    for (problems, completions), pair, seeds in itertools.product(sizes, accuracies, (3, 8)):
        generator = np.random.default_rng(10)
        weight = 1 / CORRELATION - 1
        order = generator.random((sweeps, 1, problems))
        chances = [stats.beta.ppf(order, p * weight, (1 - p) * weight) for p in pair]
        right = [
            generator.binomial(completions, np.repeat(chance, seeds, axis=1)) for chance in chances
        ]
        gains = (right[1] - right[0]).mean(axis=2) / completions
        truth = (chances[1] - chances[0]).mean(axis=2)[:, 0]
        half = (
            stats.t.isf(SIGNIFICANCE_LEVEL, seeds - 1)
            * gains.std(axis=1, ddof=1)
            / math.sqrt(seeds)
        )
        held = gains.mean(axis=1) - half <= truth, truth <= gains.mean(axis=1) + half
        rows.append(
            [
                f"{problems} x {completions}",
                f"{pair[0]}, {pair[1]}",
                f"{seeds}",
                *map(percent, held),
            ]
        )
    headings = ["problems x completions", "accuracies", "seeds", "lower bound holds, %", "upper, %"]
    print_rows("Paired t intervals of a gain, each bound meant to hold in 95%", headings, rows)


def claims(result: Verdict) -> bool:
    return isinstance(result, Tested) and result.claim == "evidence"


def named(scores: Array) -> dict[str, dict[int, float]]:
    return {f"c{i}": dict(enumerate(row)) for i, row in enumerate(scores.tolist())}


TABLES: dict[str, Callable[[int], None]] = {
    "power": power,
    "noise": noise,
    "failed": failed,
    "smooth": smooth,
    "fresh": fresh,
    "collapse": collapse,
    "seeds": seeds_promised,
    "alike": alike,
    "skewed": skewed,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tables",
        nargs="*",
        choices=[*TABLES, []],
        default=list(TABLES),
        help="tables (default: all)",
    )
    parser.add_argument(
        "--sweeps", type=int, default=4000, help="simulated sweeps per cell (default: 4000)"
    )
    arguments = parser.parse_args()
    for name in arguments.tables or TABLES:
        TABLES[name](arguments.sweeps)


if __name__ == "__main__":
    main()
