"""What does a confirmation in rounds cost compared with a fixed number of seeds, and how often is
each of them wrong?

    python -m research.decide            # about two minutes on one core

Scores are in standard deviations of one score between seeds. Both designs are planned with a noise
that an earlier sweep of 10 configurations on 3 seeds estimated (18 degrees of freedom), for a level
of 5% and a probability of 10% to miss a gain of `worthwhile`. Both judge finalists as the verdict
does. `better`, `given up` and `open` are the decisions in rounds about finalist 1, which has the
true gain. `any` is how often any finalist is called better. `seeds` are the seeds of finalist 1.
`trials` are the trials of all configurations; in rounds, finalists that were dropped cost no
further trials.
"""

import argparse
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dashboards.statistics.dunnett import critical_value
from dashboards.statistics.group_sequential import Design
from dashboards.statistics.rounds import FUTILITY_ERROR, make_design
from dashboards.statistics.seed_noise import Noise
from research.tables import mean, percent, print_rows
from research.verdict_errors import INTERIM, lognormal, normal, squares, student

Array = NDArray[np.float64]
KNOWN = 18  # degrees of freedom of the earlier noise estimate
PLANS = 10  # number of earlier sweeps, at equidistant quantiles of the noise that they estimate
MAX_SEEDS = 100


def in_rounds(design: Design, scores: Array) -> tuple[Array, Array, Array]:
    """Return the decisions (1 better, -1 not better, 0 open) [N, finalists], the seeds of finalist
    1, and the trials of all configurations.

    Args:
        design: design of the rounds.
        scores: scores [N, finalists + 1, seeds], the baseline first.
    """
    paths, arms, _ = scores.shape
    decided = np.zeros((paths, arms - 1), int)
    seeds = np.zeros(paths)
    trials = np.zeros(paths)
    running = np.ones(paths, bool)
    before = 0
    for place, analysis in enumerate(design.analyses):
        alive = (decided == 0) & running[:, None]
        seeds[running & (decided[:, 0] == 0)] = analysis
        trials += np.where(running, (alive.sum(axis=1) + 1) * (analysis - before), 0)
        gain = (scores[:, 1:, :analysis] - scores[:, :1, :analysis]).mean(axis=2)
        error = INTERIM.sds(scores[:, :, :analysis]) / np.sqrt(analysis)
        # equal scores on all seeds mean that scores are coarse, not that there is no noise
        varied = squares(scores[:, :, :analysis])[:, None] > 1e-18
        better = alive & varied & (gain > design.efficacy[place] * error)
        too_small = alive & ~better & (gain + design.futility[place] * error < design.worthwhile)
        decided += better.astype(int) - too_small
        running &= (decided == 0).any(axis=1) & ~(decided == 1).any(axis=1)
        before = analysis
    return decided, seeds, trials


@functools.cache
def fixed_seeds(worthwhile: float, finalists: int) -> int:
    """Return the number of seeds with which a single analysis, with the same corrections, misses
    `worthwhile` with probability 10%.

    Args:
        worthwhile: gain, in standard deviations as the plan estimates them.
        finalists: number of configurations other than the baseline.
    """
    generator = np.random.default_rng(2)
    for seeds in range(2, MAX_SEEDS):
        scores = generator.standard_normal((10_000, finalists + 1, seeds))
        scores[:, 1] += worthwhile
        if at_once(seeds, scores).mean() >= 1 - FUTILITY_ERROR:
            return seeds
    return MAX_SEEDS


def at_once(seeds: int, scores: Array) -> Array:
    """Return whether a single analysis at the end finds finalist 1 better, with Dunnett's
    correction.
    """
    finalists = scores.shape[1] - 1
    single = (critical_value(finalists, finalists * (seeds - 1)),)
    design = Design((seeds,), finalists, 0.0, single, single)
    return in_rounds(design, scores[:, :, :seeds])[0][:, 0] == 1


def cell(
    worthwhile: float, effect: float, finalists: int, noise: Callable[..., Array], paths: int
) -> list[str]:
    """Return a row of the table: rates and seeds of both designs."""
    generator = np.random.default_rng(1)
    decisions = []
    seeds = []
    trials = []
    claims = []
    number = []
    for quantile in (np.arange(PLANS) + 0.5) / PLANS:
        variance = float(stats.chi2.ppf(quantile, KNOWN)) / KNOWN
        design = make_design(Noise(math.sqrt(variance), KNOWN), worthwhile, finalists, MAX_SEEDS)
        fixed = fixed_seeds(round(worthwhile / math.sqrt(variance), 3), finalists)
        scores = noise(generator, (paths // PLANS, finalists + 1, max(design.analyses[-1], fixed)))
        scores[:, 1] += effect
        outcome, used, spent = in_rounds(design, scores)
        decisions.append(outcome)
        seeds.append(used)
        trials.append(spent)
        claims.append(at_once(fixed, scores))
        number.append(np.full(len(scores), fixed))
    outcome = np.concatenate(decisions)
    planned = np.concatenate(number)
    all_trials = np.concatenate(trials)
    first = outcome[:, 0]
    return [
        percent(first == 1),
        percent((outcome == 1).any(axis=1)),
        percent(first == -1),
        f"{100 * (first == 0).mean():.1f}",
        percent(np.concatenate(claims)),
        mean(np.concatenate(seeds), 1),
        f"{planned.mean():.1f}",
        f"{all_trials.mean() / (planned.mean() * (finalists + 1)):.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--paths", type=int, default=4000, help="simulated decisions per cell (default: 4000)"
    )
    paths = parser.parse_args().paths
    headings = [
        "better, %",
        "any",
        "given up",
        "open",
        "fixed: better, %",
        "seeds",
        "fixed: seeds",
        "trials / fixed",
    ]
    rows = [
        [
            f"{worthwhile:g} sd",
            str(finalists),
            f"{effect:g} sd",
            *cell(worthwhile, effect, finalists, normal, paths),
        ]
        for worthwhile in (1.0, 1.5, 2.0)
        for finalists in (1, 2)
        for effect in (0.0, worthwhile / 2, worthwhile, 3.0)
    ]
    print_rows(
        "Rounds against a fixed design", ["worthwhile", "finalists", "true gain", *headings], rows
    )
    kinds = {
        "lognormal": lognormal,
        "Student's t, 3": student,
        "finalist three times as noisy": noisy_finalist,
    }
    rows = [
        [
            name,
            f"{worthwhile:g} sd",
            str(finalists),
            f"{effect:g} sd",
            *cell(worthwhile, effect, finalists, kind, paths),
        ]
        for name, kind in kinds.items()
        for worthwhile in (1.0, 1.5, 2.0)
        for finalists in (1, 2)
        for effect in (0.0, worthwhile)
    ]
    print_rows("Other noise", ["noise", "worthwhile", "finalists", "true gain", *headings], rows)


def noisy_finalist(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = generator.standard_normal(shape)
    values[:, 1] *= 3
    return values


if __name__ == "__main__":
    main()
