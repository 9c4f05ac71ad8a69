"""How often the verdict of a sweep is wrong, and how often it finds what is there: with each of its rules.

    python -m benchmarks.verdict_errors                 # every table, some minutes on one core
    python -m benchmarks.verdict_errors failed fresh --sweeps 4000

Scores are in standard deviations of one score between seeds; configuration 0 is the baseline. The tests of a
table see the same simulated sweeps, so rows compare. Behind every rate stands its standard error.

    power      with and without the baseline's own variance; 1, 2 and 3 deviations better than the rest
    noise      false claims for other noise: lognormal, Student's t, coarse scores, one noisier configuration
    failed     false claims where the unluckiest third or tenth of the others' seeds fails
    smooth     false claims where noise is smooth in the searched parameter and the search follows it
    fresh      a finalist on fresh seeds, by the search's noise, by its own fresh seeds, and by all of its own
    seeds      how often the proposed number of fresh seeds finds a gain, against what is stated
    alike      power for the gain that is stated as detectable, and how often a warning stands beside it
    skewed     how often bounds of a paired t interval hold for accuracies near 0 and 1
"""

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.evaluation_intervals import CORRELATION
from benchmarks.tables import percent, print_rows
from dashboards.statistics.dunnett import LEVEL
from dashboards.statistics.guards import Variances, critical_values, difference_noise
from dashboards.statistics.verdict import verdict

Array = NDArray[np.float64]
GRID = [(4, 2), (10, 2), (40, 2), (4, 3), (10, 3), (40, 3), (10, 5)]  # configurations, seeds


@dataclass(frozen=True)
class Rule:
    """A rule of decision, applied to many sweeps at once."""

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
        return np.sqrt(seeds) * differences.mean(axis=1) > critical * deviation, best


POOLED = Rule(baseline_guard=False)
AFTER = Rule()


def squares(y: Array) -> Array:
    """Sum of squares that configuration and seed leave over, [N]."""
    residuals = y - y.mean(axis=2, keepdims=True) - y.mean(axis=1, keepdims=True) + y.mean(axis=(1, 2), keepdims=True)
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
            found = [rates(test, scores, better) for test in (POOLED, AFTER)]
            rows.append([f"{configurations} x {seeds}", f"{effect} sd", *found])
    headings = ["configurations x seeds", "better by", "pooled noise", "and the baseline's own variance"]
    print_rows("Found (at 0 sd: false claims), %", headings, rows)


def noise(sweeps: int) -> None:
    bare = Rule(own_guard=False, baseline_guard=False)
    rows = []
    for kind in (normal, lognormal, student, coarse, one_noisier, noisy_baseline):
        for configurations, seeds in GRID:
            scores = kind(np.random.default_rng(1), (sweeps, configurations, seeds))
            found = [rates(test, scores) for test in (bare, POOLED, AFTER)]
            rows.append([kind.__name__, f"{configurations} x {seeds}", *found])
    headings = ["noise", "configurations x seeds", "no guard", "pooled noise", "and the baseline's own variance"]
    print_rows("False claims, %", headings, rows)


def failed(sweeps: int) -> None:
    rows = []
    for share, (configurations, seeds) in itertools.product((1 / 3, 0.1), [(4, 3), (10, 3), (10, 5)]):
        generator = np.random.default_rng(3)
        kept, judged = [], []
        for _ in range(sweeps // 4):
            scores = generator.standard_normal((configurations, seeds))
            unlucky = scores < stats.norm.ppf(share)
            unlucky[0] = False
            rows_of = named(np.where(unlucky, math.nan, scores))
            survivors = {name: {seed: y for seed, y in row.items() if y == y} for name, row in rows_of.items()}
            kept.append(verdict(survivors, "c0").evidence)
            judged.append(verdict(rows_of, "c0"))
        shown = [one.interval is not None for one in judged]
        held = [one.interval[0] <= 0 for one in judged if one.interval is not None]
        claims = percent([one.evidence for one in judged])
        rows.append(
            [f"{share:.0%}", f"{configurations} x {seeds}", percent(kept), claims, percent(shown), percent(held)]
        )
    headings = ["failing", "configurations x seeds", "survivors judged", "now", "interval shown", "lower bound holds"]
    print_rows("False claims where the others' unluckiest seeds fail, %", headings, rows)


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
            differences = scores[np.arange(sweeps), best] - scores[:, 0]
            confirmed = own_test(fresh[:, 1] - fresh[:, 0], differences)
            rows.append([f"{configurations} x {seeds}", kind, percent(claims), percent(confirmed)])
    headings = ["configurations x seeds", "proposals", "on the search's seeds", "its best on 3 fresh seeds"]
    print_rows("False claims with noise smooth in the parameter, %", headings, rows)


def smooth_noise(generator: np.random.Generator, sweeps: int, seeds: int, length: float) -> Callable[[Array], Array]:
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


def own_test(fresh: Array, search: Array | None = None) -> Array:
    """Whether a finalist's differences to the baseline on fresh seeds, [N, S], show a gain.

    Args:
        fresh: they are tested.
        search: those of the search, [N, M], which tell of their noise.
    """
    seeds = fresh.shape[1]
    freedom, total = seeds - 1, (seeds - 1) * fresh.var(axis=1, ddof=1)
    if search is not None:
        freedom += search.shape[1] - 1
        total = total + (search.shape[1] - 1) * search.var(axis=1, ddof=1)
    need = stats.t.isf(LEVEL, freedom) * np.sqrt(total / freedom / seeds)
    return np.asarray(fresh.mean(axis=1) > need)


def pooled_test(fresh: Array, known: Array, known_freedom: int) -> Array:
    """`own_test` with the variance of one score that all of the search tells, but at least its own."""
    seeds = fresh.shape[1]
    own = fresh.var(axis=1, ddof=1)
    freedom = seeds - 1 + known_freedom
    variance = np.maximum((2 * known_freedom * known + (seeds - 1) * own) / freedom, own)
    return np.asarray(fresh.mean(axis=1) > stats.t.isf(LEVEL, freedom) * np.sqrt(variance / seeds))


def fresh(sweeps: int) -> None:
    """One finalist after a search of 10 configurations on 3 seeds, whose other noise is known from 18 degrees."""
    rows = []
    for noisier, seeds in itertools.product((1, 2, 3), (2, 3, 5, 8)):
        cells = [f"{noisier}", str(seeds)]
        for gain in (0.0, 2.0):
            generator = np.random.default_rng(8)
            both = generator.standard_normal((sweeps, 2, seeds + 3))
            differences = noisier * both[:, 1] - both[:, 0] + gain
            known = generator.chisquare(18, sweeps) / 18
            now, search = differences[:, :seeds], differences[:, seeds:]
            tests = pooled_test(now, known, 18), own_test(now), own_test(now, search)
            cells += [percent(claims) for claims in tests]
        rows.append(cells)
    kinds = ("by the search's noise", "its fresh seeds", "all its own (now)")
    headings = ["times as noisy", "fresh seeds", *(f"false: {kind}" for kind in kinds)]
    print_rows("A finalist on fresh seeds, %", [*headings, *(f"found at 2 sd: {kind}" for kind in kinds)], rows)


def seeds_promised(sweeps: int) -> None:
    """The best on as many fresh seeds as its verdict proposes: found by the gain it names, and by any."""
    rows = []
    for configurations, seeds, spread in [(10, 3, 0.5), (10, 3, 1.0), (10, 3, 2.0), (10, 5, 1.0), (4, 3, 1.0)]:
        generator = np.random.default_rng(7)
        numbers, named_gain, any_gain, stated = [], [], [], []
        for _ in range(sweeps // 4):
            gains = np.append(0.0, spread * generator.standard_normal(configurations - 1))
            scores = gains[:, None] + generator.standard_normal((configurations, seeds))
            result = verdict(named(scores), "c0")
            number = result.confirmation_seeds
            if number is None or result.shrunken is None or result.confirmation_chance is None:
                continue
            place = int(result.best[1:])
            fresh = generator.standard_normal((2, number))
            search = (scores[place] - scores[0])[None]
            numbers.append(number)
            stated.append(result.confirmation_chance)
            for gain, found in ((result.shrunken, named_gain), (gains[place], any_gain)):
                found.append(own_test((fresh[1] - fresh[0] + gain)[None], search)[0])
        share = f"{100 * len(numbers) / (sweeps // 4):.0f}"
        chances = percent(named_gain), f"{100 * np.mean(stated):.1f}", percent(any_gain)
        rows.append([f"{configurations} x {seeds}", f"{spread:g} sd", share, f"{np.median(numbers):.0f}", *chances])
    headings = ["configurations x seeds", "gains", "proposed in, %", "median seeds"]
    headings += ["found, had it the gain named, %", "over all gains: stated, %", "found, %"]
    print_rows("Fresh seeds proposed for the best, true gains normal around 0", headings, rows)


def collapsing(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """One score in ten lies 5 deviations lower; of unit variance."""
    values = generator.standard_normal(shape) - 5 * (generator.random(shape) < 0.1)
    return values / math.sqrt(1 + 25 * 0.09)


def alike(sweeps: int) -> None:
    """Power for the gain that each verdict states as detectable; the warning, where one stands."""
    rows = []
    for kind, (configurations, seeds) in itertools.product(
        (normal, collapsing, one_noisier, noisy_baseline), [(4, 3), (10, 3), (10, 5)]
    ):
        generator = np.random.default_rng(9)
        found, warned, quiet = [], [], []
        for _ in range(sweeps // 4):
            noise_of = kind(generator, (1, configurations, seeds))[0]
            stated = verdict(named(noise_of), "c0")
            effect = stated.minimum_detectable_effect
            if effect is None:
                continue
            again = kind(generator, (1, configurations, seeds))[0]
            again[1] += effect
            hit = verdict(named(again), "c0")
            found.append(hit.evidence and hit.best == "c1")
            warned.append(bool(stated.unlike))
            quiet += [] if stated.unlike else [found[-1]]
        rows.append([kind.__name__, f"{configurations} x {seeds}", percent(found), percent(warned), percent(quiet)])
    headings = ["noise", "configurations x seeds", "found, %", "warned, %", "found where not warned, %"]
    print_rows("The gain stated as found 8 times in 10", headings, rows)


def skewed(sweeps: int) -> None:
    """The gain of one accuracy over another: problems as in `evaluation_intervals`, as hard in the same order."""
    rows = []
    sizes, accuracies = ((100, 1), (30, 4)), ((0.01, 0.05), (0.5, 0.56), (0.95, 0.99))
    for (problems, completions), pair, seeds in itertools.product(sizes, accuracies, (3, 8)):
        generator, weight = np.random.default_rng(10), 1 / CORRELATION - 1
        order = generator.random((sweeps, 1, problems))
        chances = [stats.beta.ppf(order, p * weight, (1 - p) * weight) for p in pair]
        right = [generator.binomial(completions, np.repeat(chance, seeds, axis=1)) for chance in chances]
        gains, truth = (right[1] - right[0]).mean(axis=2) / completions, (chances[1] - chances[0]).mean(axis=2)[:, 0]
        half = stats.t.isf(LEVEL, seeds - 1) * gains.std(axis=1, ddof=1) / math.sqrt(seeds)
        held = gains.mean(axis=1) - half <= truth, truth <= gains.mean(axis=1) + half
        rows.append([f"{problems} x {completions}", f"{pair[0]}, {pair[1]}", f"{seeds}", *map(percent, held)])
    headings = ["problems x completions", "accuracies", "seeds", "lower bound holds, %", "upper, %"]
    print_rows("Paired t intervals of a gain, each bound meant to hold in 95 %", headings, rows)


def named(scores: Array) -> dict[str, dict[int, float]]:
    return {f"c{i}": dict(enumerate(row)) for i, row in enumerate(scores.tolist())}


TABLES: dict[str, Callable[[int], None]] = {
    "power": power,
    "noise": noise,
    "failed": failed,
    "smooth": smooth,
    "fresh": fresh,
    "seeds": seeds_promised,
    "alike": alike,
    "skewed": skewed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=list(TABLES), help="which (default: all)")
    parser.add_argument("--sweeps", type=int, default=4000, help="simulated sweeps a cell (default: 4000)")
    arguments = parser.parse_args()
    for name in arguments.tables or TABLES:
        TABLES[name](arguments.sweeps)


if __name__ == "__main__":
    main()
