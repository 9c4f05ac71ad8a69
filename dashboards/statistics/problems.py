"""Split the variance of a paired difference into training differences between seeds and evaluation
on few problems.

Two configurations answer the same problems with the same seeds. The differences d[s, p] of their
accuracies follow the crossed random-effects model ``d = mean + seed + problem + rest``; its
variances come from the mean squares of the two-way table (Searle, Casella and McCulloch, Variance
Components, 1992, chapter 4).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboards.statistics.seed_noise import Noise

Array = NDArray[np.float64]
# configuration -> seed -> accuracy of every problem, [P]
Answers = Mapping[str, Mapping[Hashable, Array]]


@dataclass(frozen=True)
class ProblemSplit:
    """Variance components of the mean difference on one seed, with the numbers of seeds and
    problems.
    """

    seeds: int
    problems: int
    # variance between seeds, which more problems do not reduce; None with one seed
    training: float | None
    # evaluation variance, which decreases with more problems
    evaluation: float

    @property
    def evaluation_fraction(self) -> float | None:
        """Fraction of the variance that comes from evaluation; None with one seed or without
        variance.
        """
        if self.training is None or self.training + self.evaluation == 0:
            return None
        return self.evaluation / (self.training + self.evaluation)


def split(ours: Array, theirs: Array) -> ProblemSplit:
    """Return the variances of ``ours - theirs``, both accuracies of [S, P] seeds and problems.

    With one seed, the variance over problems is used as an upper bound of the evaluation variance.
    """
    differences = np.asarray(ours, float) - np.asarray(theirs, float)
    seeds, problems = differences.shape
    if seeds < 2:
        return ProblemSplit(seeds, problems, None, float(differences.var(ddof=1)) / problems)
    by_seed = differences.mean(axis=1)
    by_problem = differences.mean(axis=0)
    middle = differences.mean()
    rest = differences - by_seed[:, None] - by_problem + middle
    within = float((rest**2).sum()) / ((seeds - 1) * (problems - 1))
    training = max(0.0, float(by_seed.var(ddof=1)) - within / problems)
    return ProblemSplit(seeds, problems, training, within / problems)


def evaluation_noise(answers: Answers, name: str, other: str, seeds: Sequence[Hashable]) -> Noise:
    """Return the evaluation noise of one seed's difference between the configurations ``name`` and
    ``other``; zero degrees of freedom for a single seed, or unless all ``seeds`` have records.
    """
    pair = paired_answers(answers, name, other)
    if pair is None or len(seeds) < 2 or len(pair[0]) < len(seeds):
        return Noise(math.nan, 0)
    parts = split(*pair)
    return Noise(math.sqrt(parts.evaluation), (parts.seeds - 1) * (parts.problems - 1))


def paired_answers(answers: Answers, name: str, other: str) -> tuple[Array, Array] | None:
    """Return the accuracies of both configurations, [S, P] each, on the seeds recorded for both;
    None if there are no such seeds.
    """
    ours = answers.get(name, {})
    theirs = answers.get(other, {})
    seeds = [seed for seed in ours if seed in theirs and len(ours[seed]) == len(theirs[seed])]
    if name == other or not seeds:
        return None
    return np.array([ours[seed] for seed in seeds]), np.array([theirs[seed] for seed in seeds])
