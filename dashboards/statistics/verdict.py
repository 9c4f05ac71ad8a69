"""The test of whether the best configuration of a sweep beats its baseline by more than the noise between seeds.

Dunnett's many-to-one test in a randomised block design with seeds as blocks: the differences of all configurations
to the baseline share one estimate of the noise, that of the additive model of `seed_noise`, so that few seeds of
many configurations suffice. It is one-sided, because only a gain is ever claimed. The p value is the probability
that the largest of all the t reaches that of the best configuration when no configuration differs: it is corrected
for having picked the best. Sign flips of paired differences cannot do this: with 3 seeds their smallest p is 1/8.

Departures, each for an assumption that fails in practice:

- The best configuration may be noisier than the others: where its own differences vary more than the pooled noise,
  their variance is used.
- The baseline may be: the variance of a difference is then at least its own and that of the others, and where an F
  test finds it noisier (or two seeds allow no test), with Welch's degrees of freedom.
- Seeds that failed are the unlucky ones: their configurations make no claim and lend no noise. Configurations that
  kept all their seeds are the lucky ones: what survival can have given them, where it is always the unluckiest
  seeds that fail, is taken off their gain (a trimming bound [Lee, Rev. Econ. Stud. 76, 2009], for normal noise).
  Where more than a quarter failed, that bound is too rough, and there is no interval.
- Seeds may differ by nothing but the few problems they are evaluated on. Where it is known which problems each
  solved, and no more than that is seen, the problems give the noise, with their many degrees of freedom.
- A search follows noise that is smooth in its parameters, which no correction for the number of configurations
  undoes. A search's own seeds give candidates; only fresh seeds give evidence.
- On fresh seeds few configurations are left, and any of them may be noisier than the search was. Each is tested by
  its own differences to the baseline alone: a paired t test, with Bonferroni's correction for several. Their
  variance is that of fresh and of the search's seeds, each around its own mean, whatever chose the best mean.

`benchmarks/verdict_errors.py` simulates what each of them costs and prevents; docs/statistics.md has the tables.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
from scipy import stats

from dashboards.statistics import dunnett
from dashboards.statistics.conclusion import MOST_FAILED, Verdict, undecided, unmatched, worded
from dashboards.statistics.dunnett import LEVEL
from dashboards.statistics.guards import Variances, difference_noise, evaluation_alone, unlike_noise
from dashboards.statistics.power import assurance, detectable_alone, minimum_detectable_effect, seeds_for
from dashboards.statistics.problems import Answers, evaluation_noise
from dashboards.statistics.seed_noise import (
    Noise,
    PairedDifference,
    Scores,
    baseline_noise,
    finite_scores,
    paired_differences,
    require,
    residuals,
    seed_noise,
)


def verdict(
    scores: Scores,
    baseline: str,
    mode: Literal["max", "min"] = "max",
    *,
    own: Mapping[str, Noise] | None = None,
    adaptive: bool = False,
    answers: Answers | None = None,
) -> Verdict:
    """Compare the best configuration with the baseline on matched seeds.

    Args:
        scores: configuration -> seed -> score of trials that ran to their end; NaN where the trial failed.
        baseline: the configuration to beat.
        mode: whether larger or smaller scores are better.
        own: given for fresh seeds, on which each configuration is tested by its own differences to the baseline:
            their noise on other seeds, empty where it is not known.
        adaptive: whether earlier scores on these seeds decided which configurations were tried.
        answers: where the score is an accuracy, which problems it was made of.

    Raises:
        ValueError: the baseline has no score.
    """
    finite = finite_scores(scores)
    require(finite, baseline)
    sign = 1.0 if mode == "max" else -1.0
    silent = tuple(name for name in scores if name != baseline and len(finite[name]) < len(scores[name]))
    judged = {name: row for name, row in finite.items() if name not in silent}
    paired = paired_differences(judged, baseline)
    repeated = {name: one for name, one in paired.items() if len(one.by_seed) > 1}
    candidates = repeated or paired
    if not candidates:
        return unmatched(judged, baseline, sign, silent)
    matched = {
        name: {seed: y for seed, y in judged[name].items() if seed in finite[baseline]}
        for name in [baseline, *candidates]
    }
    spread = float(np.ptp([y for row in matched.values() for y in row.values()]))
    best = _best(candidates, sign, spread)
    chosen = candidates[best]
    found = undecided(best, baseline, chosen.mean.value, len(chosen.by_seed), sign, len(candidates), silent)
    known = Noise(math.nan, 0) if own is None else own.get(best, Noise(math.nan, 0))
    noise = seed_noise(matched) if own is None else _own_noise(chosen, known)
    # Equal scores on all seeds are coarse scores, not the absence of noise.
    if found.seeds < 2 or noise.freedom == 0 or noise.deviation <= 1e-9 * spread:
        return found

    share = failed_share(scores, baseline)
    found = replace(found, failing=share > MOST_FAILED, luck=survival_luck(share) * noise.deviation)
    evaluation = evaluation_noise(answers or {}, best, baseline, list(chosen.by_seed))
    if own is None:
        variances = _variances(chosen, noise, baseline_noise(matched, baseline), evaluation)
        shared = tuple(frozenset(one.by_seed) for one in candidates.values())
        found = replace(found, unlike=unlike_noise(variances, residuals(matched)))
    else:
        variances, shared = _own_variances(noise, evaluation), None
    found = _tested(found, sign, shared, variances, adaptive)
    return worded(_with_forecast(found, sign, candidates, noise, None if own is None else known.freedom))


def _best(candidates: Mapping[str, PairedDifference], sign: float, spread: float) -> str:
    """The configuration with the best mean difference; the first of those that differ by rounding alone."""
    means = {name: sign * one.mean.value for name, one in candidates.items()}
    top = max(means.values())
    return next(name for name, mean in means.items() if mean >= top - 1e-9 * spread)


def _own_noise(best: PairedDifference, known: Noise) -> Noise:
    """The noise of one score by which a configuration's own differences vary, on these seeds and on others."""
    values = list(best.by_seed.values())
    here = Noise(float(np.std(values, ddof=1)), len(values) - 1) if len(values) > 1 else Noise(math.nan, 0)
    noise = here.pooled(known)
    return Noise(noise.deviation / math.sqrt(2), noise.freedom)


def _tested(
    undecided: Verdict, sign: float, shared: tuple[frozenset[Hashable], ...] | None, found: Variances, adaptive: bool
) -> Verdict:
    """The verdict with its interval and p value; ``shared`` is None where noise is that of each configuration."""
    deviations, freedoms = difference_noise(found, undecided.comparisons)
    if undecided.failing:
        return undecided
    error, freedom = float(deviations[0]) / math.sqrt(undecided.seeds), int(freedoms[0])
    t = (sign * undecided.difference - undecided.luck) / error
    if shared is None:
        needed = float(stats.t.isf(LEVEL / undecided.comparisons, freedom))
        p_value = min(1.0, undecided.comparisons * float(stats.t.sf(t, freedom)))
    else:
        needed, p_value = dunnett.quantile(shared, freedom), dunnett.p_value(t, shared, freedom)
    luck, half = undecided.luck, needed * error
    low, high = undecided.difference - half, undecided.difference + half
    return replace(
        undecided,
        evidence=p_value < LEVEL and not adaptive,
        candidate=p_value < LEVEL,
        interval=(low - luck, high) if sign > 0 else (low, high + luck),
        p_value=p_value,
        by_problem=bool(evaluation_alone(found)[0]),
    )


def _with_forecast(
    tested: Verdict, sign: float, candidates: Mapping[str, PairedDifference], noise: Noise, known_freedom: int | None
) -> Verdict:
    """The verdict with what these seeds can find, and how many what is left of the difference takes.

    ``known_freedom`` is that of the best's own noise on other seeds; None in a search.
    """
    shrunken, variance = shrunken_difference(candidates, tested.best, noise.deviation)
    if known_freedom is None:
        known, everywhere = tested.seeds - 1, seeds_for(sign * shrunken, noise.deviation, tested.comparisons + 1)
        detectable = minimum_detectable_effect(noise.deviation, tested.seeds, tested.comparisons + 1)
    else:
        known, everywhere = known_freedom, None
        detectable = detectable_alone(noise.deviation, tested.seeds, known, tested.comparisons)
    alone = seeds_for(sign * shrunken, noise.deviation, known_freedom=known)
    chance = None
    if alone is not None:
        chance = assurance((sign * shrunken, math.sqrt(variance)), noise.deviation, alone, known)
    return replace(
        tested,
        shrunken=shrunken,
        deviation=noise.deviation,
        freedom=noise.freedom,
        minimum_detectable_effect=detectable,
        seeds_needed=everywhere,
        confirmation_seeds=alone,
        confirmation_chance=chance,
    )


def failed_share(scores: Scores, baseline: str) -> float:
    """Share of failed seeds of the configurations besides the baseline, but of those that failed on every seed."""
    rows = [list(row.values()) for name, row in scores.items() if name != baseline]
    seeds = [value for row in rows if any(map(math.isfinite, row)) for value in row]
    return sum(not math.isfinite(value) for value in seeds) / len(seeds) if seeds else 0.0


def survival_luck(share: float) -> float:
    """The most that keeping all seeds can gain a configuration, in standard deviations between the seeds kept.

    The mean of a normal deviate above its quantile at the share of seeds that failed, over the deviation that is
    left there: as much as if those had all been the unluckiest.
    """
    if not share:
        return 0.0
    kept = stats.truncnorm(stats.norm.ppf(share), math.inf)
    return float(kept.mean() / kept.std())


def shrunken_difference(
    candidates: Mapping[str, PairedDifference], best: str, deviation: float
) -> tuple[float, float]:
    """The best difference as empirical Bayes estimates it, and the variance of the true one around it.

    The best of many looks better than it is. True effects are taken as normal around their mean with the variance
    that the differences show beyond the noise; the baseline's own noise is common to all and cancels in that. With
    fewer than three differences, which have no such variance, the single one is shrunk towards zero. ``deviation``
    is that of one score between seeds.
    """
    means = np.array([one.mean.value for one in candidates.values()])
    seeds = np.array([len(one.by_seed) for one in candidates.values()])
    value, noise = candidates[best].mean.value, deviation**2 / len(candidates[best].by_seed)
    if len(means) < 3:
        kept = max(0.0, 1 - 2 * noise / value**2) if value else 0.0
        return kept * value, kept * 2 * noise
    effects = max(0.0, float(means.var(ddof=1)) - float(np.mean(deviation**2 / seeds)))
    centre = float(means.mean())
    kept, share = effects / (effects + noise), 1 / len(means)
    # Around it lie the noise of the baseline, that of the centre, and what shrinking leaves of the best's own.
    return centre + kept * (value - centre), noise * (1 + share + kept * (1 - share))


def _variances(best: PairedDifference, noise: Noise, parts: tuple[Noise, Noise], evaluation: Noise) -> Variances:
    """Estimates of the best difference's noise from that of scores, its parts (baseline, others), evaluation's."""
    base, others = parts
    told = base.freedom > 0 and others.freedom > 0
    return Variances(
        pooled=np.array([noise.deviation**2]),
        freedom=noise.freedom,
        own=np.array([np.var(list(best.by_seed.values()), ddof=1)]),
        base=np.array([base.deviation**2]) if told else None,
        base_freedom=base.freedom,
        others=np.array([others.deviation**2]) if told else None,
        others_freedom=others.freedom,
        evaluation=np.array([evaluation.deviation**2]) if evaluation.freedom else None,
        evaluation_freedom=evaluation.freedom,
        own_freedom=len(best.by_seed) - 1,
    )


def _own_variances(noise: Noise, evaluation: Noise) -> Variances:
    """`_variances` where a configuration's own differences alone tell its noise."""
    own = np.array([noise.deviation**2])
    return Variances(
        pooled=own,
        freedom=noise.freedom,
        own=2 * own,
        own_freedom=noise.freedom,
        evaluation=np.array([evaluation.deviation**2]) if evaluation.freedom else None,
        evaluation_freedom=evaluation.freedom,
    )
