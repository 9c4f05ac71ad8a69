"""How often the verdict of a sweep is wrong, and how often it finds what is there: with each of its rules.

    python -m benchmarks.verdict_errors                 # every table, about five minutes on one core
    python -m benchmarks.verdict_errors failed noisy --sweeps 4000

Scores are in standard deviations of one score between seeds; configuration 0 is the baseline. The tests of a
table see the same simulated sweeps, so rows compare. Behind every rate stands its standard error.

    power      two-sided as before, against one-sided; 1, 2 and 3 deviations better than the rest
    noise      false claims for other noise: lognormal, Student's t, coarse scores, noisier configurations
    noisy      false claims where the baseline alone is three times as noisy
    failed     false claims where the unluckiest third or tenth of the others' seeds fails
    smooth     false claims where noise is smooth in the searched parameter and the search follows it
    seeds      how often the promised number of fresh seeds finds the difference, promised 8 in 10
"""

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.tables import percent, print_rows
from dashboards.statistics.dunnett import LEVEL, critical_value
from dashboards.statistics.guards import Variances, critical_values, difference_noise
from dashboards.statistics.seed_noise import Noise
from dashboards.statistics.verdict import verdict

Array = NDArray[np.float64]
GRID = [(4, 2), (10, 2), (40, 2), (4, 3), (10, 3), (40, 3), (10, 5)]  # configurations, seeds


@dataclass(frozen=True)
class Rule:
    """A rule of decision, applied to many sweeps at once."""

    one_sided: bool = True
    own_guard: bool = True
    baseline_guard: bool = True

    def __call__(self, scores: Array) -> tuple[Array, Array]:
        """Whether each sweep claims a gain, and for which configuration.

        Args:
            scores: [N, C, S]; NaN makes a configuration silent.
        """
        sweeps = len(scores)
        silent = np.isnan(scores).any(axis=2)
        counted = (~silent).sum(axis=1)
        claims, best = np.zeros(sweeps, bool), np.zeros(sweeps, int)
        for count in np.unique(counted[counted > 1]):
            rows = np.flatnonzero(counted == count)
            keep = np.argsort(silent[rows], axis=1, kind="stable")[:, :count]
            own = np.take_along_axis(scores[rows], keep[:, :, None], axis=1)
            claims[rows], winner = self._complete(own)
            best[rows] = keep[np.arange(len(rows)), winner]
        return claims, best

    def _complete(self, y: Array) -> tuple[Array, Array]:
        sweeps, configurations, seeds = y.shape
        freedom = (configurations - 1) * (seeds - 1)
        means = y.mean(axis=2)
        best = 1 + (means[:, 1:] - means[:, :1]).argmax(axis=1)
        rows = np.arange(sweeps)
        differences = y[rows, best] - y[:, 0]
        others_freedom = (configurations - 2) * (seeds - 1)
        base, others = None, None
        if self.baseline_guard and others_freedom:
            others = squares(y[:, 1:]) / others_freedom
            base = (y[:, 0] - y[:, 1:].mean(axis=1)).var(axis=1, ddof=1) - others / (configurations - 1)
            base = np.maximum(base, 0)
        own = differences.var(axis=1, ddof=1) if self.own_guard else np.zeros(sweeps)
        found = Variances(squares(y) / freedom, freedom, own, base, seeds - 1, others, others_freedom)
        deviation, freedoms = difference_noise(found, configurations - 1)
        critical = critical_values(configurations - 1, freedoms)
        if not self.one_sided:
            critical = np.full(sweeps, two_sided(configurations - 1, freedom))
        return np.sqrt(seeds) * differences.mean(axis=1) > critical * deviation, best


def two_sided(comparisons: int, freedom: int) -> float:
    """Dunnett's two-sided critical value."""
    overlap = np.full((comparisons, comparisons), 0.5) + np.eye(comparisons) / 2
    generator = np.random.default_rng(0)
    normal = generator.standard_normal((100_000, comparisons)) @ np.linalg.cholesky(overlap).T
    largest = np.abs(normal).max(axis=1) / np.sqrt(generator.chisquare(freedom, 100_000) / freedom)
    return float(np.quantile(largest, 1 - LEVEL))


BEFORE = Rule(one_sided=False, baseline_guard=False)
ONE_SIDED = Rule(baseline_guard=False)
AFTER = Rule()


def squares(y: Array) -> Array:
    """Sum of squares that configuration and seed leave over, [N]."""
    residuals = (
        y - y.mean(axis=2, keepdims=True) - y.mean(axis=1, keepdims=True) + y.mean(axis=(1, 2), keepdims=True)
    )
    return (residuals**2).sum(axis=(1, 2))


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape)


def lognormal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return (np.exp(generator.standard_normal(shape)) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


def student(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_t(3, shape) / math.sqrt(3)


def coarse(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Scores in steps as large as their deviation."""
    return np.round(generator.standard_normal(shape))


def one_noisier(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = generator.standard_normal(shape)
    values[:, 1] *= 3
    return values


def noisy_baseline(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = generator.standard_normal(shape)
    values[:, 0] *= 3
    return values


def rates(test: Rule, scores: Array, better: int | None = None) -> str:
    claims, best = test(scores)
    return percent(claims if better is None else claims & (best == better))


def power(sweeps: int) -> None:
    rows = []
    for configurations, seeds in GRID:
        for effect in (0, 1, 2, 3):
            scores = normal(np.random.default_rng(effect), (sweeps, configurations, seeds))
            scores[:, 1] += effect
            better = 1 if effect else None
            rows.append(
                [f"{configurations} x {seeds}", f"{effect} sd"]
                + [rates(test, scores, better) for test in (BEFORE, ONE_SIDED, AFTER)]
            )
    print_rows(
        "Found (at 0 sd: false claims), %",
        ["configurations x seeds", "better by", "two-sided (before)", "one-sided", "and baseline guard (now)"],
        rows,
    )


def noise(sweeps: int) -> None:
    bare = Rule(own_guard=False, baseline_guard=False)
    rows = []
    for kind in (normal, lognormal, student, coarse, one_noisier):
        for configurations, seeds in GRID:
            scores = kind(np.random.default_rng(1), (sweeps, configurations, seeds))
            rows.append(
                [kind.__name__, f"{configurations} x {seeds}"]
                + [rates(test, scores) for test in (bare, BEFORE, AFTER)]
            )
    print_rows(
        "False claims, %", ["noise", "configurations x seeds", "one-sided, no guard", "before", "now"], rows
    )


def noisy(sweeps: int) -> None:
    rows = []
    for configurations, seeds in GRID:
        scores = noisy_baseline(np.random.default_rng(2), (sweeps, configurations, seeds))
        rows.append([f"{configurations} x {seeds}"] + [rates(test, scores) for test in (BEFORE, ONE_SIDED, AFTER)])
    print_rows(
        "False claims where the baseline has three times the noise, %",
        ["configurations x seeds", "two-sided (before)", "one-sided", "and baseline guard (now)"],
        rows,
    )


def failed(sweeps: int) -> None:
    """Before, a configuration with a failed seed was judged by the seeds that were left."""
    rows = []
    layouts = [(4, 3), (10, 3), (10, 5)]
    for share, (configurations, seeds) in itertools.product((1 / 3, 0.1), layouts):
        generator = np.random.default_rng(3)
        before, now = [], []
        for _ in range(sweeps // 4):
            scores = generator.standard_normal((configurations, seeds))
            unlucky = scores < stats.norm.ppf(share)
            unlucky[0] = False
            kept = {
                f"c{i}": {s: y for s, y in enumerate(row) if not out[s]}
                for i, (row, out) in enumerate(zip(scores.tolist(), unlucky, strict=True))
            }
            failing = {
                f"c{i}": {s: math.nan if out[s] else y for s, y in enumerate(row)}
                for i, (row, out) in enumerate(zip(scores.tolist(), unlucky, strict=True))
            }
            before.append(verdict(kept, "c0").evidence)
            now.append(verdict(failing, "c0").evidence)
        rows.append([f"{share:.0%}", f"{configurations} x {seeds}", percent(before), percent(now)])
    print_rows(
        "False claims where the others' unluckiest seeds fail, % (one-sided test both times)",
        ["failing", "configurations x seeds", "survivors judged (before)", "silent, luck taken off (now)"],
        rows,
    )


def smooth(sweeps: int) -> None:
    """A search by hill climbing in one parameter, with noise that is a smooth function of it for every seed."""
    rows = []
    for configurations, seeds in [(10, 3), (20, 3), (40, 3), (40, 5)]:
        for kind in ("random", "adaptive"):
            noise_of = smooth_noise(np.random.default_rng(4), sweeps, seeds, length=0.15)
            places, scores = search(noise_of, sweeps, configurations, seeds, adaptive=kind == "adaptive")
            claims, best = AFTER(scores)
            chosen = places[np.arange(sweeps), best]
            fresh_noise = smooth_noise(np.random.default_rng(5), sweeps, 3, length=0.15)
            fresh = np.stack([fresh_noise(np.zeros(sweeps)), fresh_noise(chosen)], axis=1)
            freedom = (configurations - 1) * (seeds - 1)
            confirmed = fresh_test(fresh, squares(scores), freedom)
            # Only what the search names is run again.
            layout, now = f"{configurations} x {seeds}", "none" if kind == "adaptive" else "as before"
            twice = percent(claims & confirmed)
            rows.append([layout, kind, percent(claims), now, percent(confirmed), twice])
    print_rows(
        "False claims with noise smooth in the parameter, %",
        [
            "configurations x seeds",
            "proposals",
            "on the search's seeds (before)",
            "now",
            "best on 3 fresh seeds",
            "claimed and then confirmed",
        ],
        rows,
    )


def smooth_noise(
    generator: np.random.Generator, sweeps: int, seeds: int, length: float
) -> Callable[[Array], Array]:
    """Noise of unit variance as a function of the parameter, [N] -> [N, S]: half of it smooth, half of it not."""
    features = 32
    frequencies = generator.standard_normal((sweeps, seeds, features)) / length
    phases = generator.uniform(0, 2 * math.pi, (sweeps, seeds, features))

    def at(place: Array) -> Array:
        waves = np.cos(frequencies * place[:, None, None] + phases)
        rough = generator.standard_normal((sweeps, seeds))
        return np.asarray(np.sqrt(2 / features) * waves.sum(axis=2) * math.sqrt(0.5) + rough * math.sqrt(0.5))

    return at


def search(
    noise_of: Callable[[Array], Array], sweeps: int, configurations: int, seeds: int, *, adaptive: bool
) -> tuple[Array, Array]:
    """Places [N, C] and scores [N, C, S]: the baseline at 0, ten random proposals, then steps from the best."""
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


def fresh_test(scores: Array, known_squares: Array, known_freedom: int) -> Array:
    """Best against baseline alone, [N, 2, S], with the noise of the search pooled in."""
    seeds = scores.shape[2]
    differences = scores[:, 1] - scores[:, 0]
    freedom = seeds - 1 + known_freedom
    pooled = 2 * (squares(scores) + known_squares) / freedom
    variance = np.maximum(pooled, differences.var(axis=1, ddof=1))
    need = critical_value(1, freedom) * np.sqrt(variance / seeds)
    return np.asarray(differences.mean(axis=1) > need)


def seeds_promised(sweeps: int) -> None:
    """Before: the difference as observed, two-sided, and the confirmation's noise from its own seeds alone."""
    rows = []
    for configurations, seeds, effect in [(10, 3, 1), (10, 3, 2), (10, 3, 3), (10, 5, 2), (4, 3, 2)]:
        generator = np.random.default_rng(7)
        numbers: dict[str, list[int]] = {"before": [], "now": []}
        found: dict[str, list[bool]] = {"before": [], "now": []}
        fixed: dict[str, list[bool]] = {"before": [], "now": []}
        for _ in range(sweeps // 10):
            scores = generator.standard_normal((configurations, seeds))
            scores[1] += effect
            result = verdict(named(scores), "c0")
            if result.best != "c1" or result.winner != "c1" or result.deviation is None:
                continue
            known = Noise(result.deviation, result.freedom)
            promised = {
                "before": two_sided_seeds(result.difference, known.deviation),
                "now": result.confirmation_seeds,
            }
            for when, number in promised.items():
                if number is not None:
                    fresh = generator.standard_normal((2, number))
                    fresh[1] += effect
                    numbers[when].append(number)
                    found[when].append(confirmed(fresh, known, when))
            three = generator.standard_normal((2, 3))
            three[1] += effect
            for when in promised:
                fixed[when].append(confirmed(three, known, when))
        row = [f"{configurations} x {seeds}", f"{effect} sd"]
        for when in ("before", "now"):
            row += [
                f"{np.median(numbers[when]):.0f}",
                percent(np.array(found[when])),
                percent(np.array(fixed[when])),
            ]
        rows.append(row)
    print_rows(
        "The best on as many fresh seeds as promised to find it 8 times in 10, %",
        ["configurations x seeds", "better by"]
        + [f"{title} ({when})" for when in ("before", "now") for title in ("median seeds", "found", "found on 3")],
        rows,
    )


def named(scores: Array) -> dict[str, dict[int, float]]:
    return {f"c{i}": dict(enumerate(row)) for i, row in enumerate(scores.tolist())}


def two_sided_seeds(effect: float, deviation: float) -> int | None:
    """Fewest seeds with which the paired two-sided t test has power 0.8."""
    for seeds in range(2, 101):
        critical = stats.t.ppf(0.975, seeds - 1)
        if stats.nct.sf(critical, seeds - 1, effect / (deviation * math.sqrt(2 / seeds))) >= 0.8:
            return seeds
    return None


def confirmed(fresh: Array, known: Noise, when: str) -> bool:
    if when == "now":
        return verdict(named(fresh), "c0", known=known).evidence
    differences = fresh[1] - fresh[0]
    return bool(stats.ttest_1samp(differences, 0).pvalue < 0.05 and differences.mean() > 0)


TABLES: dict[str, Callable[[int], None]] = {
    "power": power,
    "noise": noise,
    "noisy": noisy,
    "failed": failed,
    "smooth": smooth,
    "seeds": seeds_promised,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tables", nargs="*", choices=[*TABLES, []], default=list(TABLES), help="which (default: all)"
    )
    parser.add_argument("--sweeps", type=int, default=4000, help="simulated sweeps a cell (default: 4000)")
    arguments = parser.parse_args()
    for name in arguments.tables or TABLES:
        TABLES[name](arguments.sweeps)


if __name__ == "__main__":
    main()
