"""Compare arms with a baseline if their runs share all, some or none of the baseline's seeds.

A seed is a block if both arms ran on it: it fixes data order and sampling, and its effect cancels
in the difference. In other tables a seed is only a label, and two arms share one by chance. Each
arm is compared as its seeds allow:

- *paired*: at least half of the smaller arm's seeds are shared, and one of the two arms has no
  others. The test of `comparison` on the shared seeds.
- *partly paired*: both arms have further seeds. The mean difference on shared seeds and the
  difference of means over the others, weighted by their numbers of runs. The variance of the first
  is at least the variance of unpaired runs, because a few shared seeds estimate it badly. If the
  shared seeds are clearly correlated, the others only add noise: the shared seeds alone are used.
- *unpaired*: fewer seeds are shared. One arm: Welch's test of all runs. Several arms with at least
  four runs each: `unpaired`. With fewer runs, a t test with as many degrees of freedom as the
  smaller arm has.

With fewer than four runs, with partly shared seeds, and for arms that are compared with a number,
an arm's variance is at least the median of all arms' variances. With few runs, some arms look quiet
by chance, and a t test of their own variances reports too many false positives. A noisy arm, or one
with failed runs, changes the median little. Several arms are corrected by Bonferroni's method.

A paired arm that is clearly noisier than the others, that lacks seeds or that has failed runs is
compared apart, with its share of the level, so that it leaves the other results as they are.
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
from dashboards.statistics.seed_noise import Noise, Scores, finite_scores, require_baseline
from dashboards.statistics.unpaired import compare_unpaired

# Level of the test for correlated shared seeds, divided by the number of arms. At 0.01 a chance
# correlation of few seeds, and with it a small variance of their differences, is picked too often.
_CORRELATED = 0.001
# Level of the test for an arm that is noisier than the others, divided by the number of arms. A
# higher one would often take arms with heavy-tailed scores apart, and lose their part of the noise.
_NOISIER = 0.001
_EQUAL = 1e-12  # a variance of rounding errors, as a part of another arm's


@dataclass(frozen=True)
class Plan:
    """How runs were planned, on which their comparison depends."""

    # for runs of other programs, whether a seed is a block; if None, every trial of a seed was
    # planned with the others' and seeds are blocks
    pairing: Pairing | None = None
    # a number to compare with instead of a baseline, oriented as the gains
    against: float | None = None
    tasks: Tasks | None = None  # seed -> task, if every task has seeds of its own


def compare_as_asked(
    gains: Scores,
    baseline: str,
    plan: Plan,
    *,
    known: Known | None = None,
    answers: Answers | None = None,
    repeats: float = 1,
) -> Comparison:
    """Choose the test that fits how the runs were planned, and run it: on every verdict, table and
    page rests this comparison.

    Args:
        gains: configuration -> seed -> score, larger is better; NaN where the run failed.
        baseline: the configuration to beat, or the name of the number.
        plan: how the runs were planned.
        known: what was known before these seeds: whether seeds are blocks, and gains of the same
            configurations on other seeds, which add to the noise estimate only.
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
    """Compare every arm with the baseline, each as its seeds allow.

    Args:
        scores: arm -> seed -> score, larger is better; NaN where the run failed. A seed that an arm
            lacks was not run, and is ignored.
        baseline: the arm to beat.
        pairing: whether seeds are blocks; decided for each arm if ``auto``.
        answers: per-problem accuracies, if the score is an accuracy.
        blocks: whether shared seeds are blocks; None if nobody knows.

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
    """Return arm -> layout, of arms with a run that ended."""
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
    """What is known in addition to the scores."""

    answers: Answers | None
    known: Known


def _compare(
    counted: Scores,
    baseline: str,
    layouts: Mapping[str, Layout],
    failed: Collection[str],
    extra: _Extra,
) -> Comparison:
    """Compare arms without a failed run in known layouts. ``failed`` had some before they were
    imputed.
    """
    base = counted[baseline]
    names = [name for name in layouts if counted.get(name)]
    paired = [name for name in names if layouts[name] == "paired"]
    # An arm that lacks seeds, that failed or that is noisy must not change the others' results.
    complete = [name for name in paired if base.keys() <= counted[name].keys()]
    regular = [name for name in complete if name not in failed]
    noisy = _noisy(counted, baseline, regular)
    regular = [name for name in regular if name not in noisy]
    regular_scores = {name: counted[name] for name in [baseline, *regular]}
    share = len(names) / max(1, len(regular))  # of the level, by the number of comparisons
    others = compare(
        regular_scores, baseline, known=extra.known, answers=extra.answers, repeats=share
    )
    # the arms share one level, so each interval has the coverage of all together
    differences = {}
    for each in others.differences:
        differences[each.configuration] = replace(each, level=SIGNIFICANCE_LEVEL)
    variances = _variances(counted)
    within = _within(counted)
    noises = {}
    groups: dict[
        tuple[str, frozenset[Hashable]], list[str]
    ] = {}  # of arms that share a noise estimate
    labels = [name for name in names if layouts[name] == "unpaired"]
    apart = compare_unpaired(counted, baseline, labels, len(names))
    for name in names:
        samples = Samples(base, counted[name])
        if name in apart:
            differences[name] = apart[name].difference
            noises[name] = apart[name].noise
        elif layouts[name] != "paired":
            combine = _unpaired if layouts[name] == "unpaired" else _partly_paired
            differences[name] = combine(name, samples, variances, baseline, len(names))
            noises[name] = within
        elif name not in regular and samples.shared:
            # Arms on the same seeds share an estimate of the noise: with their own estimates, the
            # best of many would be one that looks quiet by chance.
            own = name if name in noisy or name in failed else ""
            groups.setdefault((own, frozenset(samples.shared)), []).append(name)
    for (own, _), alike in groups.items():
        reference = {baseline: base} if own in noisy else regular_scores
        rows = {**reference, **{name: counted[name] for name in alike}}
        among = compare(
            rows, baseline, known=extra.known, answers=extra.answers, comparisons=len(names)
        )
        for each in among.differences:
            if each.configuration in alike:
                differences[each.configuration] = each
        for name in alike:
            noises[name] = among.noises.get(name, among.noise)
    return Comparison(
        differences=tuple(differences[name] for name in names if name in differences),
        paired=others.paired,
        noise=others.noise,
        failed={},
        noises={**others.noises, **noises},
        blocks=others.blocks,
    )


def _noisy(counted: Scores, baseline: str, names: Sequence[str]) -> set[str]:
    """Return the arms whose differences to the baseline vary clearly more than all others' do.

    The noisiest arm is tested first, against the pooled variance of the others (an F test at level
    ``_NOISIER``, divided by the number of arms), then the next one.
    """
    base = counted[baseline]
    variances = {}
    dof = len(base) - 1
    for name in names:
        differences = [counted[name][seed] - score for seed, score in base.items()]
        variances[name] = float(np.var(differences, ddof=1)) if dof > 0 else 0.0
    noisy: set[str] = set()
    for name in sorted(variances, key=lambda name: -variances[name]):
        rest = [variances[other] for other in variances if other not in noisy | {name}]
        pooled = float(np.mean(rest)) if rest else 0.0
        if pooled <= _EQUAL * variances[name] or dof < 1:  # the others are coarse, not quiet
            break
        p_value = float(special.fdtrc(dof, dof * len(rest), variances[name] / pooled))
        if p_value >= _NOISIER / len(names):
            break
        noisy.add(name)
    return noisy


def compare_with_number(scores: Scores, number: float, name: str = "number") -> Comparison:
    """Compare the mean of every arm with a number, such as a published record (Student's t test of
    one sample, Bonferroni's correction, variances of at least the median as of unpaired arms).
    ``number`` is oriented as the scores: larger is better. ``name`` stands for it as the baseline.

    An arm that failed on every run is not compared. For other failed runs see `failures`.
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

    Runs that are all equal say nothing of the noise, so they get the largest variance of all arms.
    """
    variances = dict.fromkeys(counted, math.nan)
    for name, row in counted.items():
        if len(row) > 1:
            variances[name] = float(np.var(list(row.values()), ddof=1))
    known = [variance for variance in variances.values() if not math.isnan(variance)]
    if not known:
        return variances
    typical = float(np.median(known))
    largest = max(known)
    for name, variance in variances.items():
        # NaN is true, and `max` keeps it
        variances[name] = max(variance, typical) if variance else largest
    return variances


def _within(counted: Scores) -> Noise:
    """Return the noise of one score around its arm's mean, all arms together."""
    noise = Noise(math.nan, 0)
    for row in counted.values():
        if len(row) > 1:
            values = list(row.values())
            noise = noise.pooled(Noise(float(np.std(values, ddof=1)), len(values) - 1))
    return noise


def _correlated(samples: Samples, comparisons: int) -> bool:
    """Return whether both arms are clearly correlated over their shared seeds."""
    shared = samples.shared
    if len(shared) < 3:
        return False
    base = np.array([samples.base[seed] for seed in shared])
    arm = np.array([samples.arm[seed] for seed in shared])
    if base.std() == 0 or arm.std() == 0:
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


def _partly_paired(
    name: str, samples: Samples, variances: Mapping[str, float], baseline: str, comparisons: int
) -> Difference:
    """Combine the differences on shared seeds with the difference of means over other seeds."""
    shared = samples.shared
    differences = np.array([samples.arm[seed] - samples.base[seed] for seed in shared])
    rest_of_base, rest_of_arm = samples.rest
    of_rest = float(np.mean(rest_of_arm) - np.mean(rest_of_base))
    pairs_of_rest = len(rest_of_arm) * len(rest_of_base) / (len(rest_of_arm) + len(rest_of_base))
    weight = (len(shared) / 2) / (len(shared) / 2 + pairs_of_rest)
    both = variances[name] + variances[baseline]
    of_shared = max(float(differences.var(ddof=1)), both) / len(shared)
    variance_of_rest = variances[name] / len(rest_of_arm) + variances[baseline] / len(rest_of_base)
    gain = weight * float(differences.mean()) + (1 - weight) * of_rest
    error = math.sqrt(weight**2 * of_shared + (1 - weight) ** 2 * variance_of_rest)
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
    return tested(difference, error, seeds - 1, comparisons)
