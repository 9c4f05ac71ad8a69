"""Progress reports of a run while it goes on."""

from collections.abc import Mapping

MetricValues = Mapping[str, float]  # name -> value


class ProgressReport:
    """Receives the phases and the metrics of a run; does nothing with them."""

    def phase(self, what: str, count: int = 0, announce: bool = True) -> None:
        """Something begins that may take long, of ``count`` parts; that of every step is not
        announced.
        """

    def note(self, line: str) -> None:
        """Something worth knowing was found."""

    def completed(self, count: int) -> None:
        """So many more of what the phase counts are done."""

    def step(self, step: int, metrics: MetricValues) -> None:
        """A training step is done."""

    def evaluation(self, step: int, metrics: MetricValues) -> None:
        """An evaluation is done."""
