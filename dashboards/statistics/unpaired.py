"""Compare arms with a baseline if their seeds are only labels, so that runs cannot be paired.

One arm is compared by Welch's test with Satterthwaite's degrees of freedom f, at the level
0.05 f / (f + 2).

Several arms with at least four runs each share a noise estimate. The variance of an arm is the mean
of its own variance and the pooled variance within all arms. The baseline's variance is the larger
of the two, because it is part of every difference. The degrees of freedom are the pooled degrees of
freedom f, and the level is 0.05 f / (f + 4), because half of the variance is estimated from fewer
runs than f suggests. The correction is Dunnett's if all arms have the same number of runs,
otherwise Bonferroni's. An arm that is clearly noisier than the others keeps its own variance, and
so do arms with fewer runs: with three, there would be 6% false positives
(research/verdict_on_real_runs.py --shared).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from dashboards.statistics.difference import Difference, outcome_of
from dashboards.statistics.dunnett import critical_value, probability_reached
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL, level
from dashboards.statistics.rounding import variance
from dashboards.statistics.seed_noise import Noise, Scores
from dashboards.statistics.welch import welch

_LEAST_RUNS = 4
_SCARCE = 4  # constant in the level of several arms
# Level of the test for an arm that is noisier than the others, divided by the number of arms. At
# 0.001, heavy-tailed arms of public runs would often count as noisier although all arms have the
# same noise.
_NOISIER = 1e-8


@dataclass(frozen=True)
class Unpaired:
    """A difference of means, and the noise of a score used in its test."""

    difference: Difference
    noise: Noise


def compare_unpaired(
    counted: Scores, baseline: str, names: Sequence[str], comparisons: int
) -> dict[str, Unpaired]:
    """Return arm -> comparison with the baseline; arms that need another test are left out.

    Args:
        counted: arm -> seed -> score, larger is better; without failed runs.
        baseline: the arm to beat.
        names: the arms whose seeds are labels.
        comparisons: number of comparisons to correct for.
    """
    values = {name: np.array(list(counted[name].values())) for name in [baseline, *names]}
    if any(len(each) < 2 for each in values.values()) or not names:
        return {}
    variances = {name: variance(each) for name, each in values.items()}
    if comparisons == 1:
        return _one(values, variances, baseline, names[0])
    enough = [name for name in values if len(values[name]) >= _LEAST_RUNS and variances[name] > 0]
    alike = [name for name in enough if name not in _noisier(values, variances, enough)]
    others = [name for name in alike if name != baseline]
    if baseline not in enough or len(others) < 2:
        return {}
    dof = sum(len(values[name]) - 1 for name in alike)
    pooled = sum((len(values[name]) - 1) * variances[name] for name in alike) / dof
    of_base = max(pooled, variances[baseline])
    equal = len({len(values[name]) for name in [baseline, *others]}) == 1
    same = equal and len(others) == comparisons
    at = SIGNIFICANCE_LEVEL * dof / (dof + _SCARCE)
    needed = critical_value(comparisons, dof, same_seeds=same, probability=at)
    compared = {}
    for name in others:
        of_arm = (variances[name] + pooled) / 2
        error = math.sqrt(of_arm / len(values[name]) + of_base / len(values[baseline]))
        found = _difference(values, baseline, name)
        p, p_worse = (
            probability_reached(side * found.gain / error, comparisons, dof, same_seeds=same)
            * SIGNIFICANCE_LEVEL
            / at
            for side in (1, -1)
        )
        difference = _tested(found, needed * error, p, p_worse)
        compared[name] = Unpaired(difference, Noise(math.sqrt(pooled), dof))
    return compared


def _one(
    values: Mapping[str, np.ndarray], variances: Mapping[str, float], baseline: str, name: str
) -> dict[str, Unpaired]:
    """Compare one arm by Welch's test; return an empty mapping if all scores are equal."""
    error, dof = welch(values[baseline].tolist(), values[name].tolist())
    if not error > 0:
        return {}
    found = _difference(values, baseline, name)
    corrected = SIGNIFICANCE_LEVEL / level(dof)
    t = found.gain / error
    difference = _tested(
        found,
        float(special.stdtrit(dof, 1 - level(dof))) * error,
        corrected * float(special.stdtr(dof, -t)),
        corrected * float(special.stdtr(dof, t)),
    )
    all_dof = sum(len(each) - 1 for each in values.values())
    within = sum((len(values[each]) - 1) * variances[each] for each in values) / all_dof
    return {name: Unpaired(difference, Noise(math.sqrt(within), all_dof))}


def _noisier(
    values: Mapping[str, np.ndarray], variances: Mapping[str, float], names: Sequence[str]
) -> set[str]:
    """Return the arms whose scores are clearly noisier than the scores of the other arms. The
    noisiest arm is tested first, and the first arm that is not noisier ends the search.
    """
    noisier: set[str] = set()
    for name in sorted(names, key=lambda name: -variances[name]):
        rest = [other for other in names if other not in noisier | {name}]
        dof = sum(len(values[other]) - 1 for other in rest)
        if not dof:
            break
        pooled = sum((len(values[other]) - 1) * variances[other] for other in rest) / dof
        p = float(special.fdtrc(len(values[name]) - 1, dof, variances[name] / pooled))
        if p >= _NOISIER / len(names):
            break
        noisier.add(name)
    return noisier


def _difference(values: Mapping[str, np.ndarray], baseline: str, name: str) -> Difference:
    """Return the difference of means, without a test."""
    return Difference(
        configuration=name,
        baseline=baseline,
        gain=float(values[name].mean() - values[baseline].mean()),
        seeds=min(len(values[name]), len(values[baseline])),
        median=float(np.median(values[name]) - np.median(values[baseline])),
        layout="unpaired",
    )


def _tested(found: Difference, half: float, p: float, p_worse: float) -> Difference:
    """Add interval, p values and outcome."""
    interval = (found.gain - half, found.gain + half)
    return replace(
        found,
        interval=interval,
        p=min(1.0, p),
        p_worse=min(1.0, p_worse),
        outcome=outcome_of(interval, found.seeds),
    )
