"""The significance level, and quantities derived from it."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

Degrees = TypeVar("Degrees", float, NDArray[np.float64])  # degrees of freedom

SIGNIFICANCE_LEVEL = 0.05  # one-sided, because only improvements over the baseline are claimed
POWER = 0.8  # power at which a gain is called detectable
ASSURANCE = 0.8  # probability that the recommended number of seeds has this power
# Constant in `level`, chosen on public training runs with different collapse rates
# (research/verdict_on_real_runs.py).
_SCARCE = 2
# true gain that is detected with this power, in standard errors, for known noise
DETECTABLE_ERRORS = float(special.ndtri(1 - SIGNIFICANCE_LEVEL) + special.ndtri(POWER))


def level(dof: Degrees) -> Degrees:
    """Return the nominal level for which the false positive rate on public training runs is
    ``SIGNIFICANCE_LEVEL``, for a noise estimate with ``dof`` degrees of freedom.

    Training scores are not normal, which a noise estimate with few degrees of freedom does not
    reveal. At a level of 5%, t tests on three seeds have 7 to 8% false positives. With many degrees
    of freedom the level is ``SIGNIFICANCE_LEVEL``.
    """
    return SIGNIFICANCE_LEVEL * dof / (dof + _SCARCE)


def repeats_factor(earlier_confirmations: int) -> int:
    """Return the factor of p-values after earlier confirmations of the same finalists.

    It doubles with each confirmation, so all confirmations together report a false improvement with
    a probability below twice the level of one confirmation: 1 + 1/2 + 1/4 + ... = 2. Intervals use
    the level divided by the factor, so an interval excludes 0 if and only if p is significant.
    """
    return int(2**earlier_confirmations)


def coverage(repeats: float = 1) -> float:
    """Return the coverage of a two-sided interval whose level is divided by ``repeats``."""
    return 1 - 2 * SIGNIFICANCE_LEVEL / repeats
