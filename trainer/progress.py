"""What is told about a run while it goes on."""

from collections.abc import Mapping


class ProgressReport:
    """Receives the phases and the metrics of a run; does nothing with them."""

    def phase(self, what: str, completions: int = 0, announce: bool = True) -> None:
        """Something begins that may take long.

        Args:
            what: in words.
            completions: that it will sample on this rank; 0 where it samples none.
            announce: whether it is worth a line; a phase of every step is not.
        """

    def completed(self, count: int) -> None:
        """So many completions more of the phase are sampled."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done."""

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation is done."""
