"""Limit how long the threads of a process spin while they wait for each other.

torch uses libgomp's threads, which by default spin for about a millisecond. If other programs run,
spinning threads take the cores away from the threads that they wait for: on two cores with two busy
processes, a step of `benchmarks/grpo_step.py` took 5 to 11 s, but 3.8 s with `SPIN_COUNT`. Without
other programs, the step took 1.5 s in both cases, and 1.9 s with sleeping threads (PASSIVE).
"""

import logging
import os
from collections.abc import Mapping

SPIN_COUNT = 2000
_SPIN_VARIABLE = "GOMP_SPINCOUNT"
_POLICY_VARIABLE = "OMP_WAIT_POLICY"

_logger = logging.getLogger(__name__)


def spin_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that limits spinning; empty if ``environment`` already controls it."""
    if _SPIN_VARIABLE in environment or _POLICY_VARIABLE in environment:
        return {}
    return {_SPIN_VARIABLE: str(SPIN_COUNT)}


def limit_spinning() -> None:
    """Limit the spinning of this process and its children, or turn it off if the machine is busy.

    Call before importing torch. Variables set by the user are kept.
    """
    variables = spin_variables(os.environ)
    if variables and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        variables = {_POLICY_VARIABLE: "PASSIVE"}
        _logger.info(
            "other programs use this machine's cores, so threads of this run sleep while they wait "
            "(OMP_WAIT_POLICY=PASSIVE was set; to keep them spinning, set it to ACTIVE yourself)"
        )
    os.environ.update(variables)
