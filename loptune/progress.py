"""Progress reporting interface."""

from collections.abc import Mapping

MetricValues = Mapping[str, float]  # name -> value


class ProgressReport:
    """Receiver of a run's progress events. This base class ignores them."""

    def phase(self, what: str, count: int = 0, announce: bool = True) -> None:
        """Start the long-running phase ``what`` with ``count`` parts; 0 if their number is unknown.
        Phases that recur in every step set ``announce`` to False.
        """

    def note(self, line: str) -> None:
        """Show a message."""

    def completed(self, count: int) -> None:
        """Advance the current phase by ``count`` parts."""

    def step(self, step: int, metrics: MetricValues) -> None:
        """Report a finished training step."""

    def evaluation(self, step: int, metrics: MetricValues) -> None:
        """Report a finished evaluation."""
