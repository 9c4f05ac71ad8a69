"""Whether more evaluation problems or more seeds narrow an interval at the lower cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.statistics.problems import ProblemSplit


@dataclass(frozen=True)
class ProblemsOrSeeds:
    """Two ways to narrow an interval equally: twice the evaluation problems, or more seeds."""

    # part of a paired difference's variance that comes from few problems
    evaluation_fraction: float
    narrower: float  # fraction by which doubling the number of problems narrows the interval
    cost_of_problems: float  # additional time with twice the problems, as a fraction
    cost_of_seeds: float  # additional time with the seeds that narrow it as much

    @property
    def cheaper(self) -> str:
        """The cheaper way to narrow the interval: more ``problems`` or more ``seeds``."""
        return "problems" if self.cost_of_problems < self.cost_of_seeds else "seeds"


def problems_or_seeds(
    splits: Sequence[ProblemSplit], training_s: float, evaluation_s: float
) -> ProblemsOrSeeds | None:
    """Compare the cost of more problems with the cost of more seeds.

    The variance of a difference is the sum of training and evaluation variance, and the time of a
    trial the sum of training and evaluation time. Twice the problems halve the evaluation variance
    and double the evaluation time. None without variance, or if a part of the time is unknown.

    Args:
        splits: variance components of pairs of configurations, each on several seeds.
        training_s: seconds spent in training steps, by one trial or by all trials together.
        evaluation_s: seconds that the same trials spent evaluating.
    """
    known = [part for part in splits if part.training is not None]
    training = math.fsum(part.training or 0.0 for part in known)
    evaluation = math.fsum(part.evaluation for part in known)
    if not known or training + evaluation <= 0 or min(training_s, evaluation_s) <= 0:
        return None
    fraction = evaluation / (training + evaluation)
    left = 1 - fraction / 2
    return ProblemsOrSeeds(
        evaluation_fraction=fraction,
        narrower=1 - math.sqrt(left),
        cost_of_problems=evaluation_s / (training_s + evaluation_s),
        cost_of_seeds=1 / left - 1,
    )
