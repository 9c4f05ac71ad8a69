"""Progress reports of a run while it goes on."""

from collections.abc import Mapping

MetricValues = Mapping[str, float]  # name -> value


class ProgressReport:
    """Receives the phases and the metrics of a run; does nothing with them."""

    def phase(self, what: str, count: int = 0, announce: bool = True) -> None:
        """Begin something that may take long, of ``count`` parts; that of every step is not
        announced.
        """

    def note(self, line: str) -> None:
        """Report something worth knowing."""

    def completed(self, count: int) -> None:
        """Report that ``count`` more parts of the phase are done."""

    def step(self, step: int, metrics: MetricValues) -> None:
        """Report that a training step is done."""

    def evaluation(self, step: int, metrics: MetricValues) -> None:
        """Report that an evaluation is done."""
