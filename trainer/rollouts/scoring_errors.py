"""Errors of scoring, with the remedy for their cause."""

from collections.abc import Sequence

from loptune.errors import RewardError
from rewards.score import FailureCause


def scoring_error(
    what: str,
    where: str = "reward.functions",
    cause: FailureCause = "",
    withheld: Sequence[str] = (),
) -> RewardError:
    """Return the RewardError for scoring failures, with the remedy for their cause.

    ``withheld`` are the environment variables that scoring asked for and did not get.
    """
    hints = {
        "time": "make the reward function faster, or raise reward.timeout_s",
        "memory": "raise reward.memory_mb, or import libraries and load models at the top of the "
        "module or in its prepare(), where the limit does not apply",
        "environment": withheld_hint(withheld),
        "": "use a reward that supports these answers, or fix the reward function",
    }
    return RewardError(what, where, hints[cause], code="scoring-failed")


def withheld_hint(names: Sequence[str]) -> str:
    """Return a hint on how to pass environment variables to scoring."""
    return (
        f"scoring asked for {', '.join(names)}, but variables whose name or value looks like a "
        "secret are not passed on; to pass them on, set "
        f"reward.environment='[{', '.join(names)}]'"
    )
