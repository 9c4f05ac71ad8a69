"""Seed noise: the variation of a configuration's scores between seeds.

A configuration's scores are a mapping of seed to score. Two configurations are compared on the
seeds they share: a seed determines the order of the problems and the randomness of the rollouts, so
its effect cancels in the difference. A missing score means that the trial has not run. A score that
is not finite means that it failed. Exclude configurations with trials that a scheduler stopped,
because the surviving seeds are a biased sample.
"""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dashboards.statistics.rounding import rounding, variance

Vector = NDArray[np.float64]
Scores = Mapping[str, Mapping[Hashable, float]]  # configuration -> seed -> score

# Level of the test for seeds that are blocks. On public training runs without common seed effects,
# a level of 1% would pair too often by chance (research/verdict_on_real_runs.py).
BLOCKS = 0.001
# Level for a single configuration, where this test alone decides whether runs are paired. At 0.1%,
# choosing between two tests on five seeds would add half a percentage point of false positives.
BLOCKS_OF_ONE = 1e-5


@dataclass(frozen=True)
class PairedDifference:
    """Differences of a configuration from the baseline on shared seeds."""

    by_seed: Mapping[Hashable, float]
    mean: float


class Noise(NamedTuple):
    """An estimate of the noise of a score between seeds."""

    sd: float  # standard deviation; NaN without residual degrees of freedom
    dof: int  # degrees of freedom of that estimate

    def pooled(self, other: "Noise") -> "Noise":
        """Pool two estimates of the same noise."""
        if not other.dof:
            return self
        if not self.dof:
            return other
        dof = self.dof + other.dof
        squares = self.dof * self.sd**2 + other.dof * other.sd**2
        return Noise(math.sqrt(squares / dof), dof)


def paired_differences(scores: Scores, baseline: str) -> dict[str, PairedDifference]:
    """Return each configuration's differences from the baseline on shared seeds; configurations
    without a shared seed are left out.

    Raises:
        ValueError: the baseline has no score.
    """
    finite = finite_scores(scores)
    require_baseline(finite, baseline)
    base = finite[baseline]
    differences = {}
    for name, by_seed in finite.items():
        shared = {seed: by_seed[seed] - base[seed] for seed in by_seed if seed in base}
        if name == baseline or not shared:
            continue
        mean = float(np.mean(list(shared.values())))
        if abs(mean) <= rounding(shared.values()):  # rounding error must not decide the winner
            mean = 0.0
        differences[name] = PairedDifference(shared, mean)
    return differences


def noise_around_mean(values: Collection[float], *computed_from: Iterable[float]) -> Noise:
    """Return the noise of values around their mean, 0 if they are equal (see `rounding.variance`);
    without degrees of freedom for fewer than two values.
    """
    if len(values) < 2:
        return Noise(math.nan, 0)
    return Noise(math.sqrt(variance(values, *computed_from)), len(values) - 1)


def seed_noise(scores: Scores) -> Noise:
    """Return the noise of a score between seeds, assuming that it is the same for all
    configurations.

    It is the residual standard deviation of the additive model ``score = configuration + seed +
    noise`` (least squares; configurations may lack some seeds). It is exactly 0 if rounding
    explains the residuals: the scores are coarse, not free of noise.
    """
    left, _, dof = _additive(scores)
    if dof == 0:
        return Noise(math.nan, 0)
    sd = math.sqrt(float(left @ left) / dof)
    return Noise(0.0 if sd <= rounding(all_scores(finite_scores(scores))) else sd, dof)


class SeedEffects(NamedTuple):
    """The analysis of variance of the additive model."""

    ratio: float  # mean square of the seed effects divided by the residual mean square
    seeds_dof: int
    dof: int  # residual degrees of freedom
    configurations: float  # average number of configurations with a score per seed


def seed_effects(stages: Sequence[Scores]) -> SeedEffects | None:
    """Return the common seed effects over all stages, each of which has its own seeds; None if they
    cannot be estimated.
    """
    of_seeds = left_over = 0.0
    seeds_dof = dof = scores_in_all = seeds_in_all = 0
    for scores in stages:
        left, effects, residual_dof = _additive(scores)
        within = 0.0
        within_dof = 0
        for row in finite_scores(scores).values():
            values = np.array(list(row.values()))
            if len(values):
                within += float(((values - values.mean()) ** 2).sum())
                within_dof += len(values) - 1
        of_seeds += within - float(left @ left)
        seeds_dof += within_dof - residual_dof
        left_over += float(left @ left)
        dof += residual_dof
        scores_in_all += len(left)
        seeds_in_all += len(effects)
    if seeds_dof < 1 or dof < 1 or left_over <= 1e-24:
        return None
    ratio = (of_seeds / seeds_dof) / (left_over / dof)
    return SeedEffects(ratio, seeds_dof, dof, scores_in_all / seeds_in_all)


def seeds_are_blocks(stages: Sequence[Scores], level: float = BLOCKS) -> bool:
    """Return whether scores clearly depend on the seed, by an F test of the seed effects at
    ``level``. Each of the ``stages`` has its own seeds.
    """
    effects = seed_effects(stages)
    if effects is None:
        return False
    return float(special.fdtrc(effects.seeds_dof, effects.dof, effects.ratio)) < level


def baseline_noise(scores: Scores, baseline: str) -> tuple[Noise, Noise]:
    """Return the noise of the baseline, and the noise of the other configurations.

    The others estimate each seed's effect. The baseline's deviations from these effects contain its
    own noise and the estimation error of the effects, which is subtracted. Zero degrees of freedom
    if there are fewer than two other configurations or seeds.
    """
    finite = finite_scores(scores)
    others = {name: row for name, row in finite.items() if name != baseline and row}
    left, effects, dof = _additive(others)
    seeds = [seed for seed in finite[baseline] if seed in effects]
    if dof == 0 or len(seeds) < 2:
        return Noise(math.nan, 0), Noise(math.nan, 0)
    noise = float(left @ left) / dof
    deviations = np.array([finite[baseline][seed] - effects[seed] for seed in seeds])
    counts = Counter(itertools.chain.from_iterable(others.values()))  # seed -> number of scores
    in_effects = noise * float(np.mean(1 / np.array([counts[seed] for seed in seeds])))
    own_variance = max(0.0, float(deviations.var(ddof=1)) - in_effects)
    return Noise(math.sqrt(own_variance), len(seeds) - 1), Noise(math.sqrt(noise), dof)


def _additive(scores: Scores) -> tuple[Vector, dict[Hashable, float], int]:
    """Return residuals, effects of the seeds (up to a constant) and degrees of freedom of the
    additive model.
    """
    rows = [by_seed for by_seed in finite_scores(scores).values() if by_seed]
    seeds: dict[Hashable, int] = {}  # seed -> index
    for by_seed in rows:
        for seed in by_seed:
            seeds.setdefault(seed, len(seeds))
    if not rows:
        return np.zeros(0), {}, 0
    # one row per score, with a 1 in the columns of its configuration and of its seed
    observed = np.array([score for by_seed in rows for score in by_seed.values()])
    design = np.zeros((len(observed), len(rows) + len(seeds)))
    score = 0
    for configuration, by_seed in enumerate(rows):
        for seed in by_seed:
            design[score, [configuration, len(rows) + seeds[seed]]] = 1
            score += 1
    fitted, _, rank, _ = np.linalg.lstsq(design, observed, rcond=None)
    effects = dict(zip(seeds, fitted[len(rows) :].tolist(), strict=True))
    return observed - design @ fitted, effects, len(observed) - int(rank)


def finite_scores(scores: Scores) -> dict[str, dict[Hashable, float]]:
    """Return the finite scores: the scores of trials that did not fail."""
    finite = {}
    for name, row in scores.items():
        finite[name] = {seed: float(y) for seed, y in row.items() if math.isfinite(y)}
    return finite


def oriented(scores: Scores, sign: float) -> Scores:
    """Multiply the scores by ``sign``, so that larger is better."""
    with_sign = {}
    for name, row in scores.items():
        with_sign[name] = {seed: sign * score for seed, score in row.items()}
    return with_sign


def all_scores(scores: Scores) -> list[float]:
    """Return the scores of all configurations in one list."""
    values: list[float] = []
    for row in scores.values():
        values += row.values()
    return values


def require_baseline(scores: Scores, baseline: str) -> None:
    """Raise a ValueError that names the baseline if it has no score."""
    if not scores.get(baseline):
        raise ValueError(
            f"the baseline {baseline} has no score: choose a configuration that finished"
        )
