"""Which test keeps more gains, e-values or the gate's group-sequential test, and what is proven for
each?

The candidates replace the test of a proposal by an e-value, and LORD++ by e-LOND [AISTATS 2024] or
by the online e-closure principle [arXiv:2603.24792]. The rest of the gate is unchanged: its
futility rule, and its baseline, which runs again after ten proposals and before a keep.

    python -m research.gate_evidence                       # every scenario, 1,000 campaigns each
    python -m research.gate_evidence --campaigns 200 --scenario "1 SD" --rules "e-LOND, exact"
"""

import argparse
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray
from scipy import special

from research import gate_campaigns
from research.gate_campaigns import (
    NOISES,
    REFRESH_AFTER,
    RULES,
    SCENARIOS,
    WORTHWHILE,
    Evidence,
    Look,
    Outcome,
    Rule,
    gated,
    replay,
)

Floats = NDArray[np.float64]

_MOST_LOG = 500.0  # largest logarithm of a likelihood ratio; a larger one would overflow
GAINS = (0.75, 1.0, 1.5, 2.5)  # alternatives of `pooled`, in units of the worthwhile gain
PRIOR_VARIANCE = 1.0  # of a gain, in units of the variance of a paired difference


def pooled(look: Look) -> Floats:
    """Return the likelihood ratio of a gain and no gain, as a mean over `GAINS`.

    If the standard error is known, this is an e-process: without a gain, its expectation is at most
    1 at any stopping time. If the standard error is estimated, Student's t distribution replaces
    the normal one, and this holds only approximately.
    """
    mean: Floats = np.mean([_ratio(look, gain * WORTHWHILE) for gain in GAINS], axis=0)
    return mean


def _ratio(look: Look, gain: float) -> Floats:
    error = np.maximum(look.error, np.finfo(float).tiny ** 0.25)  # 0 for scores that do not vary
    without = np.log1p((look.gain / error) ** 2 / look.dof)
    having = np.log1p(((look.gain - gain) / error) ** 2 / look.dof)
    ratio: Floats = np.exp(np.minimum((look.dof + 1) / 2 * (without - having), _MOST_LOG))
    return ratio


def exact(look: Look) -> Floats:
    """Return the anytime-valid t statistic of the paired differences, see `half_normal_t`."""
    differences = look.proposal - look.baseline
    return half_normal_t(differences)


def half_normal_t(differences: Floats) -> Floats:
    """Return the e-values of differences [proposals, seeds]; NaN marks seeds that have not run.

    The prior of the gain, in units of the unknown SD of the differences, is the positive half of a
    normal distribution with variance g = `PRIOR_VARIANCE`. The prior of the SD is the right Haar
    prior:

        E = 2 (1 + n g)^(-1/2) (sum d^2 / q)^(n/2) T_n(m / sqrt(q v / n))

    with q = sum d^2 - m^2 / v, v = g / (1 + n g), m = v sum d, and T_n the distribution function of
    Student's t. For independent normal differences without a gain, E is a martingale whatever their
    SD, so an analysis after every seed is valid [Statistical Science 2024; arXiv:2310.03722].
    """
    ran = np.isfinite(differences)
    count = np.maximum(ran.sum(axis=1), 1)
    filled = np.where(ran, differences, 0.0)
    variance = PRIOR_VARIANCE / (1 + count * PRIOR_VARIANCE)
    mean = variance * filled.sum(axis=1)
    squares = np.maximum((filled**2).sum(axis=1), np.finfo(float).tiny ** 0.25)
    rest = np.maximum(squares - mean**2 / variance, np.finfo(float).tiny ** 0.25)
    log = count / 2 * np.log(squares / rest) - 0.5 * np.log1p(count * PRIOR_VARIANCE)
    positive = special.stdtr(count, mean / np.sqrt(rest * variance / count))
    value: Floats = 2 * np.exp(np.minimum(log, _MOST_LOG)) * positive
    return value


def worthwhile(look: Look) -> Floats:
    """Return the likelihood ratio of a worthwhile gain and no gain, as in `pooled`."""
    return _ratio(look, WORTHWHILE)


def _candidate(kind: str, evidence: Evidence) -> Rule:
    return gated(kind, evidence=evidence, refresh=REFRESH_AFTER, beside=True)


TODAY = "the gate"
FUTILE = 0.25  # bounds the probability of discarding a worthwhile gain
CANDIDATES: dict[str, Rule] = {
    TODAY: RULES[TODAY],
    "e-LOND, pooled SD": _candidate("even lond", Evidence(pooled, worthwhile, FUTILE)),
    "e-closure, own SD": _candidate("closed", Evidence(exact, worthwhile, FUTILE)),
}


def _measure(scenario: str, noise: str, rule: str, campaigns: int) -> Outcome:
    return replay(
        CANDIDATES[rule], SCENARIOS[scenario], NOISES[noise](), campaigns=campaigns, seed=0
    )


def main() -> None:
    """Print what each candidate keeps in each scenario."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--scenario", nargs="*", default=list(SCENARIOS))
    parser.add_argument("--rules", nargs="*", default=list(CANDIDATES))
    parser.add_argument("--noise", choices=NOISES, default="normal")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    pairs = [(name, rule) for name in arguments.scenario for rule in arguments.rules]
    with ProcessPoolExecutor(arguments.processes) as pool:
        said = pool.map(
            _measure,
            [name for name, _ in pairs],
            [arguments.noise] * len(pairs),
            [rule for _, rule in pairs],
            [arguments.campaigns] * len(pairs),
        )
        for (name, rule), outcome in zip(pairs, said, strict=True):
            gate_campaigns.print_outcome(f"{name}: {rule}", outcome)


if __name__ == "__main__":
    main()
