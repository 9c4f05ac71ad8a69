"""Compare configurations with a baseline on matched seeds. A search, fresh seeds and interim
analyses all use this test.

It is Dunnett's many-to-one test in a randomized block design with seeds as blocks. All differences
from the baseline share one noise estimate, the residual variance of the additive model in
`seed_noise`. Therefore a few seeds of a few configurations suffice. The test is one-sided, because
only improvements are claimed, and corrected for the number of configurations. A sign-flip test of
paired differences would need more seeds: with 3, its smallest p value is 1/8.

Departures from Dunnett's test, one for each assumption that fails in practice:

- A configuration may be noisier than the others. On fewer than five seeds the variance of its own
  differences is used if that is larger than the pooled variance; on five or more, the mean of the
  two is used. On fewer than five seeds, the variance of the differences is often small by chance.
  If the variance of unpaired runs is larger, the two are averaged, unless seeds are blocks.
- With one configuration there is nothing to pool. It is compared by the paired t test if seeds are
  blocks, otherwise by Welch's test with Satterthwaite's degrees of freedom.
- Whether seeds are blocks is known before the scores are seen (`blocks`), or established by an F
  test at level 0.1% (0.001% for one configuration).
- Scores are not normal. With few degrees of freedom the level is smaller (`levels.level`).
- The baseline may be noisier: the variance of a difference is at least the baseline's variance plus
  the others'. If an F test finds the baseline noisier (or there are only two seeds to test with),
  this sum has Welch's degrees of freedom.
- Dropping failed seeds would favor their configuration. They are imputed against every claim
  instead: see `failures`.
- Evaluation on few problems may be the only source of noise. If per-problem results are recorded
  and no further variance is detected, the noise is estimated from the problems, with many degrees
  of freedom.
- There are few fresh seeds. The search scores of the same configurations, each relative to its own
  mean, add to the noise estimate. Selecting the best mean does not bias this estimate.

`research/verdict_errors.py` simulates the cost and the benefit of each departure.
`research/verdict_on_real_runs.py` measures the complete test on public runs. The tables are in
docs/explanation/statistics.md.
"""

import functools
import math
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from dashboards.statistics import dunnett
from dashboards.statistics.blocks import Known
from dashboards.statistics.compared import Comparison
from dashboards.statistics.difference import Difference, outcome_of
from dashboards.statistics.failures import compare_with_failures
from dashboards.statistics.guards import Variances, difference_noise, evaluation_alone
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL, level
from dashboards.statistics.problems import Answers, evaluation_noise
from dashboards.statistics.seed_noise import (
    BLOCKS,
    BLOCKS_OF_ONE,
    Noise,
    PairedDifference,
    Scores,
    baseline_noise,
    finite_scores,
    noise_around_mean,
    paired_differences,
    require_baseline,
    seed_noise,
    seeds_are_blocks,
)

# seeds -> critical values of the lower and the upper bound, in standard errors
Thresholds = Callable[[int], tuple[float, float] | None]


@dataclass(frozen=True)
class _Stage:
    """Scores of the compared configurations on the baseline's seeds."""

    scores: Scores
    baseline: str

    @functools.cached_property
    def parts(self) -> tuple[Noise, Noise]:
        """The noise of the baseline, and of the other configurations."""
        return baseline_noise(self.scores, self.baseline)

    def of_runs(self, name: str) -> Noise:
        """Return the noise of a configuration's scores around their mean."""
        return noise_around_mean(self.scores.get(name, {}).values())

    def own(self, name: str) -> Noise:
        """Return the noise of a configuration's differences from the baseline."""
        base = self.scores[self.baseline]
        row = self.scores.get(name, {})
        differences = [score - base[seed] for seed, score in row.items()]
        return noise_around_mean(differences, base.values(), row.values())


def compare(
    scores: Scores,
    baseline: str,
    thresholds: Thresholds | None = None,
    *,
    known: Known | None = None,
    answers: Answers | None = None,
    comparisons: int | None = None,
    repeats: float = 1,
) -> Comparison:
    """Compare every configuration with the baseline.

    Args:
        scores: configuration -> seed -> score, larger is better; NaN if the trial failed.
        baseline: the configuration to beat.
        thresholds: critical values of an interim analysis; Dunnett's if None.
        known: prior knowledge: whether seeds are blocks, and scores of these configurations on
            other seeds, used only for the noise estimate.
        answers: per-problem accuracies, if the score is an accuracy.
        comparisons: number of comparisons to correct for, if there are more than these.
        repeats: factor of p-values and divisor of the intervals' level: for repeated confirmations
            (`levels.repeats_factor`), or if these comparisons use only a part of the level.

    Raises:
        ValueError: the baseline has no score.
    """
    require_baseline(finite_scores(scores), baseline)
    paired = paired_runs(scores, baseline)
    several = {name: seeds for name, seeds in paired.items() if len(seeds) > 1}
    test = _Test(several or paired, thresholds, known or Known(), answers, comparisons, repeats)
    return compare_with_failures(lambda filled: _compare(filled, baseline, test), scores, baseline)


@dataclass(frozen=True)
class _Test:
    """The configurations to compare, and the arguments of `compare`."""

    names: Collection[str]
    thresholds: Thresholds | None
    known: Known
    answers: Answers | None
    comparisons: int | None
    repeats: float


def _compare(counted: Scores, baseline: str, test: _Test) -> Comparison:
    """Compare configurations without failed runs."""
    paired = paired_differences(counted, baseline)
    candidates = {name: paired[name] for name in test.names if name in paired}
    stages = _stages(counted, baseline, candidates, test.known)
    noise = functools.reduce(Noise.pooled, [seed_noise(stage.scores) for stage in stages])
    single = len(candidates) == 1 and test.comparisons in (None, 1) and test.thresholds is None
    blocks = test.known.blocks
    if blocks is None:
        blocks = seeds_are_blocks(
            [each.scores for each in stages], BLOCKS_OF_ONE if single else BLOCKS
        )
    noises = {}
    differences = []
    for name, pair in candidates.items():
        gains = list(pair.by_seed.values())
        difference = Difference(
            configuration=name,
            baseline=baseline,
            gain=pair.mean,
            seeds=len(gains),
            median=float(np.median(gains)),
        )
        if noise.dof and noise.sd and len(gains) > 1:
            evaluation = evaluation_noise(test.answers or {}, name, baseline, list(pair.by_seed))
            variances = _variances(stages, name, noise, evaluation)
            if single and not evaluation_alone(variances)[0]:
                error = _own_error(stages, name, baseline, blocks=blocks)
                noises[name] = error.noise
                difference = _alone(difference, error, test.repeats)
            else:
                if not blocks:
                    unpaired = _unpaired_variance(stages, name, baseline)
                    variances = replace(variances, unpaired=unpaired)
                difference = _decided(
                    difference,
                    variances,
                    test.comparisons or len(candidates),
                    test.thresholds,
                    same_seeds=_same_seeds(candidates, test.comparisons),
                    repeats=test.repeats,
                )
        differences.append(difference)
    return Comparison(
        tuple(differences), candidates, noise, {}, noises, repeats=test.repeats, blocks=blocks
    )


def _stages(
    counted: Scores, baseline: str, candidates: Mapping[str, PairedDifference], known: Known
) -> list[_Stage]:
    """Return these scores and, if the baseline has them, the known scores of other seeds."""
    stages = [_Stage(_matched(counted, baseline, candidates), baseline)]
    if known.scores is not None:
        complete = rows_without_failure(known.scores)
        if baseline in complete:
            stages.append(_Stage(_matched(complete, baseline, candidates), baseline))
    return stages


def _same_seeds(candidates: Mapping[str, PairedDifference], comparisons: int | None) -> bool:
    """Return whether all comparisons that the test corrects for use the same seeds."""
    is_every_one = comparisons in (None, len(candidates))
    return is_every_one and len({frozenset(pair.by_seed) for pair in candidates.values()}) == 1


def paired_runs(scores: Scores, baseline: str) -> dict[str, set[Hashable]]:
    """Return configuration -> the seeds that it shares with the baseline, failed runs included."""
    shared = {name: set(row) & set(scores[baseline]) for name, row in scores.items()}
    return {name: seeds for name, seeds in shared.items() if seeds and name != baseline}


def rows_without_failure(scores: Scores) -> dict[str, Mapping[Hashable, float]]:
    """Return the rows without a failed seed."""
    complete = {}
    for name, row in scores.items():
        if all(map(math.isfinite, row.values())):
            complete[name] = row
    return complete


def _matched(scores: Scores, baseline: str, candidates: Mapping[str, PairedDifference]) -> Scores:
    """Return the scores of baseline and candidates on the baseline's seeds."""
    base = scores[baseline]
    matched = {baseline: dict(base)}
    for name in candidates:
        if name in scores:
            matched[name] = {seed: y for seed, y in scores[name].items() if seed in base}
    return matched


def _variances(stages: list[_Stage], name: str, noise: Noise, evaluation: Noise) -> Variances:
    """Estimate the noise of a configuration's difference from the baseline."""
    of_one = base = others = Noise(math.nan, 0)
    for stage in stages:
        stage_base, stage_others = stage.parts
        of_one = of_one.pooled(stage.own(name))
        base = base.pooled(stage_base)
        others = others.pooled(stage_others)
    both_vary = base.dof > 0 and others.dof > 0
    return Variances(
        pooled=np.array([noise.sd**2]),
        dof=noise.dof,
        own=np.array([of_one.sd**2]),
        own_dof=of_one.dof,
        base=np.array([base.sd**2]) if both_vary else None,
        base_dof=base.dof,
        others=np.array([others.sd**2]) if both_vary else None,
        others_dof=others.dof,
        evaluation=np.array([evaluation.sd**2]) if evaluation.dof else None,
        evaluation_dof=evaluation.dof,
    )


@dataclass(frozen=True)
class _Error:
    """The noise of a single finalist's difference on one seed."""

    sd: float
    dof: float

    @property
    def noise(self) -> Noise:
        """The noise of one score."""
        return Noise(self.sd / math.sqrt(2), int(self.dof))


def _own_error(stages: list[_Stage], name: str, baseline: str, *, blocks: bool) -> _Error:
    """Return the noise for a single finalist: from its paired differences if seeds are blocks,
    otherwise from unpaired runs with Satterthwaite's degrees of freedom.
    """
    if blocks:
        own = functools.reduce(Noise.pooled, [stage.own(name) for stage in stages])
        return _Error(own.sd, own.dof)
    of_one = functools.reduce(Noise.pooled, [stage.of_runs(name) for stage in stages])
    of_base = functools.reduce(Noise.pooled, [stage.of_runs(baseline) for stage in stages])
    sd = math.hypot(of_one.sd, of_base.sd)
    share = (of_one.sd / sd) ** 2  # the configuration's fraction of the variance
    return _Error(sd, 1 / (share**2 / of_one.dof + (1 - share) ** 2 / of_base.dof))


def _alone(difference: Difference, error: _Error, repeats: float) -> Difference:
    """Add interval, p value and outcome for a single finalist, by a t test at `levels.level`."""
    dof = error.dof
    per_mean = error.sd / math.sqrt(difference.seeds)
    needed = float(special.stdtrit(dof, 1 - level(dof) / repeats)) * per_mean
    corrected = repeats * SIGNIFICANCE_LEVEL / level(dof)
    t = difference.gain / per_mean
    interval = (difference.gain - needed, difference.gain + needed)
    return replace(
        difference,
        interval=interval,
        level=SIGNIFICANCE_LEVEL / repeats,
        p=min(1.0, corrected * float(special.stdtr(dof, -t))),
        p_worse=min(1.0, corrected * float(special.stdtr(dof, t))),
        outcome=outcome_of(interval, difference.seeds),
    )


def _unpaired_variance(stages: list[_Stage], name: str, baseline: str) -> np.ndarray:
    """Return the sum of the variances of the configuration's and the baseline's scores, [1]."""
    of_one = functools.reduce(Noise.pooled, [stage.of_runs(name) for stage in stages])
    of_base = functools.reduce(Noise.pooled, [stage.of_runs(baseline) for stage in stages])
    return np.array([of_one.sd**2 + of_base.sd**2])


def _decided(
    difference: Difference,
    variances: Variances,
    comparisons: int,
    thresholds: Thresholds | None,
    *,
    same_seeds: bool,
    repeats: float,
) -> Difference:
    """Add interval, p value and outcome. An interim analysis gives no p value. Before the first
    analysis, the difference is returned unchanged.
    """
    sd = difference_noise(variances, comparisons, own_counts_half=thresholds is None)
    error = float(sd[0]) / math.sqrt(difference.seeds)
    p_value = p_worse = None
    if thresholds is None:
        t = difference.gain / error
        dof = variances.dof
        p_value, p_worse = (
            min(1.0, repeats * dunnett.p_value(side * t, comparisons, dof, same_seeds=same_seeds))
            for side in (1, -1)
        )
        critical = dunnett.critical_value(
            comparisons, dof, same_seeds=same_seeds, probability=level(dof) / repeats
        )
        needed = (critical, critical)
    else:
        reached = thresholds(difference.seeds)
        if reached is None:
            return difference
        needed = reached
    interval = (difference.gain - needed[0] * error, difference.gain + needed[1] * error)
    return replace(
        difference,
        interval=interval,
        level=SIGNIFICANCE_LEVEL / repeats,
        p=p_value,
        p_worse=p_worse,
        outcome=outcome_of(interval, difference.seeds),
        by_problem=bool(evaluation_alone(variances)[0]),
    )
