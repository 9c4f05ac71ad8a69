"""A sequential confirmation: interim analyses of finalists on fresh seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dashboards.statistics.difference import Difference


@dataclass(frozen=True)
class Rounds:
    """A sequential confirmation: interim analyses of finalists on fresh seeds."""

    planned: tuple[int, ...]  # seeds per configuration at each analysis
    worthwhile: float
    outcome: str  # better, not better, undecided or open
    # in order of the analyses; finalists numbered as in the search
    results: tuple[Difference, ...]
    # finalist -> metric of a guard -> its difference at the latest analysis
    guards: Mapping[str, Mapping[str, Difference]] = field(default_factory=dict)

    @property
    def last(self) -> list[Difference]:
        """The latest result of each finalist."""
        newest: dict[str, Difference] = {}
        for result in self.results:
            newest.pop(result.configuration, None)
            newest[result.configuration] = result
        return list(newest.values())

    @property
    def winner(self) -> Difference | None:
        """Of the finalists shown to be better, the one with the largest gain; None if there is
        none. A positive gain is an improvement, even if smaller scores are better.
        """
        better = [result for result in self.last if result.outcome == "better"]
        return max(better, key=lambda result: result.gain, default=None)
