"""Compare arms with a baseline that share all, some or none of its seeds.

Seeds are blocks if both arms ran on them and a seed fixes data order and sampling: the effect of
the seed cancels in the difference. In other tables seeds are only labels, and shared ones are a
coincidence. The test of each arm depends on its seeds:

- *paired*: at least half of the smaller arm's seeds are shared, and one of the two arms has no
  other seeds. `comparison` tests the differences on shared seeds.
- *partly paired*: both arms have further seeds. The gain combines the mean difference on shared
  seeds with the difference of means over the other seeds, weighted by their numbers of runs. The
  variance of the first part is at least the variance of unpaired runs, because it cannot be
  estimated well from a few shared seeds. If the scores on shared seeds are clearly correlated, the
  other seeds only add noise, and only the shared seeds are used.
- *unpaired*: fewer seeds are shared. A single arm is compared by Welch's test of all runs, and
  several arms with at least four runs each as in `unpaired`. With fewer runs, the comparison is a t
  test with as many degrees of freedom as the smaller arm has.

With fewer than four runs, with partly shared seeds, and for arms that are compared with a number,
an arm's variance is at least the median of all arms' variances. With few runs, the variance of some
arms is small by chance, and t tests with separate variances report too many false positives. A
noisy arm, or one with failed runs, hardly changes the median. Several arms are corrected by
Bonferroni's method.

A paired arm that is clearly noisier than the others, that lacks seeds or that has failed runs is
compared separately with its part of the level, so that it does not affect the other results.
`research/verdict_on_real_runs.py` measures the three tests on public runs.
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from dashboards.statistics.blocks import Known
from dashboards.statistics.compared import Comparison
from dashboards.statistics.comparison import compare
from dashboards.statistics.difference import Difference, Layout
from dashboards.statistics.failures import compare_with_failures, ended, failed_seeds
from dashboards.statistics.layouts import Pairing, Samples, layout_of, tested
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL
from dashboards.statistics.over_tasks import Tasks, compare_over_tasks
from dashboards.statistics.problems import Answers
from dashboards.statistics.rounding import is_equal, variance
from dashboards.statistics.seed_noise import (
    Noise,
    Scores,
    finite_scores,
    noise_around_mean,
    require_baseline,
)
from dashboards.statistics.unpaired import compare_unpaired

# Level of the test for correlated shared seeds, divided by the number of arms. At 0.01, chance
# correlations on few seeds, whose differences have a small variance, would be used too often.
_CORRELATED = 0.001
# Level of the test for an arm that is noisier than the others, divided by the number of arms. A
# higher level would often separate arms with heavy-tailed scores, and their contribution to the
# noise estimate would be lost.
_NOISIER = 0.001


@dataclass(frozen=True)
class Plan:
    """The plan of the runs, which determines the test."""

    # whether seeds are blocks, for runs of other programs; None for a sweep, which plans all trials
    # of a seed together, so seeds are blocks
    pairing: Pairing | None = None
    # a number to compare with instead of a baseline, oriented like the gains
    against: float | None = None
    tasks: Tasks | None = None  # seed -> task, if tasks have separate seeds


def compare_as_asked(
    gains: Scores,
    baseline: str,
    plan: Plan,
    *,
    known: Known | None = None,
    answers: Answers | None = None,
    repeats: float = 1,
) -> Comparison:
    """Choose the test that fits how the runs were planned, and run it. All verdicts, tables and
    reports are based on this comparison.

    Args:
        gains: configuration -> seed -> score, larger is better; NaN if the run failed.
        baseline: the configuration to beat, or the name of the number.
        plan: how the runs were planned.
        known: prior knowledge: whether seeds are blocks, and gains of the same configurations on
            other seeds, used only for the noise estimate.
        answers: per-problem accuracies, if the score is an accuracy.
        repeats: factor of p-values after earlier confirmations (`levels.repeats_factor`).

    Raises:
        ValueError: the baseline has no score.
    """
    if plan.tasks:
        pairing = plan.pairing or "auto"
        return compare_over_tasks(gains, baseline, plan.tasks, pairing, plan.against)
    if plan.against is not None:
        return compare_with_number(gains, plan.against, baseline)
    if plan.pairing is not None:
        blocks = None if known is None else known.blocks
        return compare_arms(gains, baseline, plan.pairing, answers=answers, blocks=blocks)
    return compare(gains, baseline, known=known, answers=answers, repeats=repeats)


def compare_arms(
    scores: Scores,
    baseline: str,
    pairing: Pairing = "auto",
    *,
    answers: Answers | None = None,
    blocks: bool | None = None,
) -> Comparison:
    """Compare every arm with the baseline, by the test that fits its seeds.

    Args:
        scores: arm -> seed -> score, larger is better; NaN if the run failed. A missing seed was
            not run, and is ignored.
        baseline: the arm to beat.
        pairing: whether seeds are blocks; decided for each arm if ``auto``.
        answers: per-problem accuracies, if the score is an accuracy.
        blocks: whether shared seeds are blocks; None if unknown.

    Raises:
        ValueError: the baseline has no score.
    """
    require_baseline(finite_scores(scores), baseline)
    layouts = _layouts(scores, baseline, pairing)
    failed = failed_seeds(scores)

    def compared(counted: Scores) -> Comparison:
        return _compare(counted, baseline, layouts, failed, _Extra(answers, Known(blocks=blocks)))

    return compare_with_failures(compared, scores, baseline)


def _layouts(scores: Scores, baseline: str, pairing: Pairing) -> dict[str, Layout]:
    """Return arm -> layout, for arms with a successful run."""
    scored = ended(scores)
    names = [name for name in scored if name != baseline]
    layouts = {name: layout_of(scores[baseline], scores[name], pairing) for name in names}
    for name in names:
        samples = Samples(scored[baseline], scored[name])
        if layouts[name] == "partly paired" and _correlated(samples, len(names)):
            layouts[name] = "paired"
    return layouts


@dataclass(frozen=True)
class _Extra:
    """Further arguments of the comparison."""

    answers: Answers | None
    known: Known


def _compare(
    counted: Scores,
    baseline: str,
    layouts: Mapping[str, Layout],
    failed: Collection[str],
    extra: _Extra,
) -> Comparison:
    """Compare arms in the given layouts. Scores of failed runs are imputed; ``failed`` are the arms
    with failed runs.
    """
    names = [name for name in layouts if counted.get(name)]
    paired = [name for name in names if layouts[name] == "paired"]
    # An arm with missing seeds, failed runs or more noise must not affect the results of other
    # arms, so the other arms are tested first, without it.
    complete = [name for name in paired if counted[baseline].keys() <= counted[name].keys()]
    without_failures = [name for name in complete if name not in failed]
    noisy = _noisy(counted, baseline, without_failures)
    regular = [name for name in without_failures if name not in noisy]
    regular_scores = {name: counted[name] for name in [baseline, *regular]}
    together = compare(
        regular_scores,
        baseline,
        known=extra.known,
        answers=extra.answers,
        # these arms get a part of the level, in proportion to their number
        repeats=len(names) / max(1, len(regular)),
    )

    differences = {}
    noises = dict(together.noises)
    for difference in together.differences:
        # the intervals of all arms cover simultaneously at the full level
        differences[difference.configuration] = replace(difference, level=SIGNIFICANCE_LEVEL)
    for name, (difference, noise) in _not_paired(counted, baseline, layouts, names).items():
        differences[name] = difference
        noises[name] = noise
    irregular = [name for name in paired if name not in regular]
    for group in _with_common_noise(counted, baseline, irregular, {*noisy, *failed}):
        reference = regular_scores
        if noisy.intersection(group):  # its noise differs from the noise of the regular arms
            reference = {baseline: counted[baseline]}
        among = compare(
            {**reference, **{name: counted[name] for name in group}},
            baseline,
            known=extra.known,
            answers=extra.answers,
            comparisons=len(names),
        )
        for difference in among.differences:
            if difference.configuration in group:
                differences[difference.configuration] = difference
        for name in group:
            noises[name] = among.noises.get(name, among.noise)
    return Comparison(
        differences=tuple(differences[name] for name in names if name in differences),
        paired=together.paired,
        noise=together.noise,
        failed={},
        noises=noises,
        blocks=together.blocks,
    )


def _not_paired(
    counted: Scores, baseline: str, layouts: Mapping[str, Layout], names: Sequence[str]
) -> dict[str, tuple[Difference, Noise]]:
    """Compare the baseline with the arms of ``names`` that are partly paired with it or unpaired.
    The correction is for the number of all ``names``.
    """
    unpaired = [name for name in names if layouts[name] == "unpaired"]
    jointly = compare_unpaired(counted, baseline, unpaired, len(names))
    variances = _variances(counted)
    within = _within(counted)
    results = {}
    for name in names:
        samples = Samples(counted[baseline], counted[name])
        if name in jointly:
            results[name] = (jointly[name].difference, jointly[name].noise)
        elif layouts[name] == "unpaired":
            results[name] = (_unpaired(name, samples, variances, baseline, len(names)), within)
        elif layouts[name] == "partly paired":
            difference = _partly_paired(name, samples, variances, baseline, len(names))
            results[name] = (difference, within)
    return results


def _with_common_noise(
    counted: Scores, baseline: str, names: Sequence[str], separate: Collection[str]
) -> list[list[str]]:
    """Group paired arms that share a noise estimate: arms on the same seeds. With separate
    estimates, the best of many arms would often be one whose variance is small by chance.

    Each arm of ``separate`` is a separate group. Arms that share no seed with the baseline are
    left out.
    """
    alone = []
    by_seeds: dict[frozenset[Hashable], list[str]] = {}
    for name in names:
        shared = frozenset(Samples(counted[baseline], counted[name]).shared)
        if not shared:
            continue
        if name in separate:
            alone.append([name])
        else:
            by_seeds.setdefault(shared, []).append(name)
    return [*alone, *by_seeds.values()]


def _noisy(counted: Scores, baseline: str, names: Sequence[str]) -> set[str]:
    """Return the arms whose differences from the baseline are clearly noisier than those of all
    other arms.

    The noisiest arm is tested first, against the pooled variance of the others (an F test at level
    ``_NOISIER``, divided by the number of arms), then the next one.
    """
    base = counted[baseline]
    variances = {}
    dof = len(base) - 1
    for name in names:
        row = [counted[name][seed] for seed in base]
        differences = [score - base[seed] for score, seed in zip(row, base, strict=True)]
        variances[name] = variance(differences, row, base.values()) if dof > 0 else 0.0
    noisy: set[str] = set()
    for name in sorted(variances, key=lambda name: -variances[name]):
        rest = [variances[other] for other in variances if other not in noisy | {name}]
        pooled = float(np.mean(rest)) if rest else 0.0
        # equal differences of all others mean coarse scores, not that they are less noisy
        if not pooled or dof < 1:
            break
        p_value = float(special.fdtrc(dof, dof * len(rest), variances[name] / pooled))
        if p_value >= _NOISIER / len(names):
            break
        noisy.add(name)
    return noisy


def compare_with_number(scores: Scores, number: float, name: str = "number") -> Comparison:
    """Compare the mean of every arm with a number, such as a published record (Student's t test of
    one sample, Bonferroni's correction, variances of at least the median as for unpaired arms).
    ``number`` has the same sign convention as the scores: larger is better. ``name`` is the label
    of the number. An arm whose runs all failed is not compared; for other failed runs see
    `failures`.
    """
    return compare_with_failures(
        lambda counted: _compare_with_number(counted, number, name), scores, None
    )


def _compare_with_number(counted: Scores, number: float, name: str) -> Comparison:
    variances = _variances(counted)
    differences = []
    for arm, row in counted.items():
        values = np.array(list(row.values()))
        gain = float(values.mean() - number)
        difference = Difference(
            configuration=arm,
            baseline=name,
            gain=gain,
            seeds=len(values),
            median=float(np.median(values) - number),
            layout="against a number",
        )
        if len(values) > 1:
            error = math.sqrt(variances[arm] / len(values))
            difference = tested(difference, error, len(values) - 1, len(counted))
        differences.append(difference)
    return Comparison(differences=tuple(differences), paired={}, noise=_within(counted), failed={})


def _variances(counted: Scores) -> dict[str, float]:
    """Return each arm's variance, at least the median of all arms; NaN for one run.

    Equal scores do not reveal the noise, so such arms get the largest variance of all arms.
    """
    known = {name: variance(row.values()) for name, row in counted.items() if len(row) > 1}
    if not known:
        return dict.fromkeys(counted, math.nan)
    typical = float(np.median(list(known.values())))
    largest = max(known.values())
    variances = {}
    for name in counted:
        if name not in known:
            variances[name] = math.nan
        elif known[name] == 0:
            variances[name] = largest
        else:
            variances[name] = max(known[name], typical)
    return variances


def _within(counted: Scores) -> Noise:
    """Return the noise of a score around the mean of its arm, pooled over all arms."""
    noise = Noise(math.nan, 0)
    for row in counted.values():
        noise = noise.pooled(noise_around_mean(row.values()))
    return noise


def _correlated(samples: Samples, comparisons: int) -> bool:
    """Return whether both arms are clearly correlated over their shared seeds."""
    shared = samples.shared
    if len(shared) < 3:
        return False
    base = [samples.base[seed] for seed in shared]
    arm = [samples.arm[seed] for seed in shared]
    if is_equal(base) or is_equal(arm):
        return False
    correlation = float(np.clip(np.corrcoef(base, arm)[0, 1], -1 + 1e-12, 1 - 1e-12))
    dof = len(shared) - 2
    t = correlation * math.sqrt(dof / (1 - correlation**2))
    return float(special.stdtr(dof, -t)) < _CORRELATED / comparisons


def _unpaired(
    name: str, samples: Samples, variances: Mapping[str, float], baseline: str, comparisons: int
) -> Difference:
    """Compare the means of all runs of both arms."""
    base = np.array(list(samples.base.values()))
    arm = np.array(list(samples.arm.values()))
    seeds = min(len(base), len(arm))
    difference = Difference(
        configuration=name,
        baseline=baseline,
        gain=float(arm.mean() - base.mean()),
        seeds=seeds,
        median=float(np.median(arm) - np.median(base)),
        layout="unpaired",
    )
    error = math.sqrt(variances[baseline] / len(base) + variances[name] / len(arm))
    return tested(difference, error, seeds - 1, comparisons)


@dataclass(frozen=True)
class _Estimate:
    """An estimate of an arm's gain from a part of the runs."""

    gain: float
    variance: float
    # inverse of the variance in units of the variance of one run, if it is the same for all runs
    precision: float


def _partly_paired(
    name: str, samples: Samples, variances: Mapping[str, float], baseline: str, comparisons: int
) -> Difference:
    """Combine the differences on shared seeds with the difference of means over other seeds.

    Failed runs may leave only one of the two parts, which is then the estimate.
    """
    arm_variance = variances[name]
    base_variance = variances[baseline]
    parts = [
        _gain_on_shared_seeds(samples, arm_variance, base_variance),
        _gain_on_other_seeds(samples, arm_variance, base_variance),
    ]
    estimates = [part for part in parts if part is not None]
    precision = sum(part.precision for part in estimates)
    gain = sum(part.precision * part.gain for part in estimates) / precision
    variance = sum(part.precision**2 * part.variance for part in estimates) / precision**2
    median = float(np.median(list(samples.arm.values())) - np.median(list(samples.base.values())))
    seeds = min(len(samples.arm), len(samples.base))
    difference = Difference(
        configuration=name,
        baseline=baseline,
        gain=gain,
        seeds=seeds,
        median=median,
        layout="partly paired",
    )
    return tested(difference, math.sqrt(variance), seeds - 1, comparisons)


def _gain_on_shared_seeds(
    samples: Samples, arm_variance: float, base_variance: float
) -> _Estimate | None:
    """Estimate the gain from the seeds of both arms; None if they share none."""
    shared = samples.shared
    if not shared:
        return None
    differences = np.array([samples.arm[seed] - samples.base[seed] for seed in shared])
    # A positive correlation over shared seeds would make this part precise, but a few seeds cannot
    # show one: its variance is at least the variance of unpaired runs.
    of_one_seed = arm_variance + base_variance
    if len(shared) > 1:
        of_one_seed = max(float(differences.var(ddof=1)), of_one_seed)
    return _Estimate(
        gain=float(differences.mean()),
        variance=of_one_seed / len(shared),
        precision=len(shared) / 2,
    )


def _gain_on_other_seeds(
    samples: Samples, arm_variance: float, base_variance: float
) -> _Estimate | None:
    """Estimate the gain from the seeds that only one arm has; None if an arm has no such seed."""
    base, arm = samples.rest
    if not base or not arm:
        return None
    return _Estimate(
        gain=float(np.mean(arm) - np.mean(base)),
        variance=arm_variance / len(arm) + base_variance / len(base),
        precision=len(arm) * len(base) / (len(arm) + len(base)),
    )
