"""The significance level, and everything that follows from it."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

Degrees = TypeVar("Degrees", float, NDArray[np.float64])  # of freedom

SIGNIFICANCE_LEVEL = 0.05  # one-sided, because only improvements over the baseline are claimed
POWER = 0.8  # with which a gain is called detectable
ASSURANCE = 0.8  # with which a recommended number of seeds has this power
# In `level`: chosen on public trainings, where runs collapse at different rates
# (research/verdict_on_real_runs.py).
_SCARCE = 2
# the true gain that is detected with this power, in known standard errors
DETECTABLE_ERRORS = float(special.ndtri(1 - SIGNIFICANCE_LEVEL) + special.ndtri(POWER))


def level(dof: Degrees) -> Degrees:
    """Return the level at which a test on normal scores makes ``SIGNIFICANCE_LEVEL`` on public
    trainings.

    Scores of trainings are not normal, and a noise estimate with few degrees of freedom cannot
    show it. At a level of 5%, t tests on three seeds have 7 to 8% false positives. With many
    degrees of freedom the level is ``SIGNIFICANCE_LEVEL``.
    """
    return SIGNIFICANCE_LEVEL * dof / (dof + _SCARCE)


def repeats_factor(earlier_confirmations: int) -> int:
    """Return the factor of p-values after earlier confirmations of the same finalists.

    It doubles with each, so all confirmations together report a false improvement with a
    probability below twice the level of one: 1 + 1/2 + 1/4 + ... = 2. Intervals use the level
    divided by it, so an interval excludes 0 exactly if p is significant.
    """
    return int(2**earlier_confirmations)


def coverage(repeats: float = 1) -> float:
    """Return the coverage of a two-sided interval whose level is divided by ``repeats``."""
    return 1 - 2 * SIGNIFICANCE_LEVEL / repeats
