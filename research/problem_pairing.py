"""How much do per-problem results improve a verdict's estimate of the noise? Estimates variance
components, and measures a verdict that uses them.

    python -m research.problem_pairing            # about three minutes on one core

Every configuration answers the same problems once on each of the same seeds. The probability of
solving a problem is around 0.5 and differs between problems. Training changes it by the same amount
for all problems of a configuration and a seed. `training` is the fraction of the variance of a
score that comes from training; the rest comes from evaluating on few problems. The effects of
configuration, seed and problems are not part of this variance. Gains are in standard deviations of
one score.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from dashboards.statistics.problems import split
from research.tables import mean, percent, print_rows
from research.verdict_errors import AFTER

Array = NDArray[np.float64]
FRACTIONS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
SPREAD = 0.15  # standard deviation of a problem's probability


def solve(
    generator: np.random.Generator, shape: tuple[int, int, int], training: float, gain: float = 0.0
) -> Array:
    """Return the answers of [C, S, P] configurations, seeds and problems; configuration 1 is better
    by ``gain``.
    """
    configurations, seeds, problems = shape
    easy = SPREAD * generator.standard_normal(problems)
    evaluation, moved = sds(problems, training)
    shift = moved * generator.standard_normal((configurations, seeds, 1))
    shift[1] += gain * float(np.hypot(evaluation, moved))
    probability = np.clip(0.5 + easy + shift, 0.02, 0.98)
    if training == 1:  # no evaluation noise
        return probability
    return (generator.random(shape) < probability).astype(float)


def sds(problems: int, training: float) -> tuple[float, float]:
    """Return the standard deviations of a score that come from evaluation and from training."""
    evaluation = np.sqrt((0.25 - SPREAD**2) / problems)
    if training == 1:
        return 0.0, float(evaluation)
    return float(evaluation), float(evaluation * np.sqrt(training / (1 - training)))


def components(repeats: int) -> None:
    rows = []
    for seeds, problems in [(3, 100), (10, 100), (10, 400)]:
        for fraction in FRACTIONS[:-1]:
            generator = np.random.default_rng(0)
            splits = [
                split(*solve(generator, (2, seeds, problems), fraction)[::-1])
                for _ in range(repeats)
            ]
            evaluation, training = (2 * sd**2 for sd in sds(problems, fraction))
            rows.append(
                [
                    f"{seeds} x {problems}",
                    f"{fraction:g}",
                    f"{1e4 * evaluation:.1f}",
                    mean([1e4 * variances.evaluation for variances in splits], 1),
                    f"{1e4 * training:.1f}",
                    mean([1e4 * (variances.training or 0.0) for variances in splits], 1),
                    percent([variances.training == 0 for variances in splits]),
                ]
            )
    headings = [
        "seeds x problems",
        "training",
        "evaluation: true",
        "found",
        "training: true",
        "found",
        "found 0, %",
    ]
    print_rows("Variances of a difference, in 0.0001 (what is below 0 is cut off)", headings, rows)


def verdicts(sweeps: int) -> None:
    rows = []
    for configurations, seeds, problems in [
        (2, 2, 100),
        (4, 2, 100),
        (10, 2, 100),
        (4, 3, 100),
        (4, 3, 30),
        (10, 3, 100),
    ]:
        for fraction in FRACTIONS:
            cells = [f"{configurations} x {seeds}", str(problems), f"{fraction:g}"]
            for gain in (0.0, 2.0):
                generator = np.random.default_rng(1)
                shape = (configurations, seeds, problems)
                answers = np.stack([solve(generator, shape, fraction, gain) for _ in range(sweeps)])
                for by_problem in (False, True):
                    claims, best = judge(answers, by_problem)
                    cells.append(percent(claims & (best == 1) if gain else claims))
            rows.append(cells)
    headings = ["configurations x seeds", "problems", "training"]
    headings += ["false claims, % (before)", "now", "found at 2 sd, % (before)", "now"]
    print_rows("Verdicts from seeds alone, and with the problems", headings, rows)


def judge(answers: Array, by_problem: bool) -> tuple[Array, Array]:
    """Return whether each sweep claims a gain, and for which configuration; answers are [N, C, S,
    P].
    """
    return AFTER(answers.mean(axis=3), answers if by_problem else None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sweeps", type=int, default=4000, help="simulated sweeps per cell (default: 4000)"
    )
    sweeps = parser.parse_args().sweeps
    components(sweeps)
    verdicts(sweeps)


if __name__ == "__main__":
    main()
