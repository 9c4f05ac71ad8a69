"""The roles of a table's columns, how a run's score is computed and how arms are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from dashboards.sources.conditions import Condition
from dashboards.sources.settings import SETTINGS_FILE
from dashboards.statistics.layouts import Pairing
from dashboards.trial import FIELDS, Mode, sign_of

WINDOW = 3  # default number of last evaluations that a score averages


@dataclass(frozen=True)
class RunColumns:
    """Roles of a table's columns, and options of scoring and comparison."""

    by: Sequence[str]  # columns that define the compared configurations
    score: str
    baseline: Mapping[str, Any]  # column of ``by`` -> value
    # if empty, the column with the name of a seed; without one, runs are independent
    seed: str = ""
    tuned: Sequence[str] = ()  # columns that are tuned separately for each value of ``by``
    task: Sequence[str] = ()  # task columns: differences are averaged over tasks
    step: str = "step"  # if present, there is one row per evaluation
    trial: str = "trial"  # run-name column, for `problems`
    # number of last evaluations that the score averages (default: `WINDOW`); with an axis, a length
    # along it
    window: float | None = None
    mode: Mode | None = None  # None: as declared by the source, or else max
    # best: the score is the run's best evaluation, and the window is ignored
    take: Literal["last", "best"] = "last"
    at_step: float | None = None  # evaluations after this step are ignored
    axis: str = ""  # increasing column: runs are compared at equal values
    # axis value of the comparison (default: the largest that all runs reach)
    at: float | None = None
    allow_unequal: bool = False  # compare runs that end at different steps
    # accept seeds that all have the same score, as a guard on memory may have
    may_be_equal: bool = False
    # compare scores even if some look like fractions and others like percentages
    same_unit: bool = False
    failed: Sequence[Condition] = ()  # conditions for failed runs, in addition to the end state
    pairing: Pairing = "auto"  # whether runs with the same seed are paired
    worthwhile: float = 0.0  # smallest improvement that matters, in units of the score
    not_worse_by: float | None = None  # non-inferiority margin
    against: float | None = None  # compare the arms with this number instead of a baseline
    ignore: Sequence[str] = ()  # columns whose differences between runs are ignored
    # table of solved problems with the columns trial, problem and correct
    problems: pd.DataFrame | None = field(default=None, repr=False)
    source: str = "a table"

    @property
    def point(self) -> list[str]:
        """The columns that define a configuration."""
        return [*self.by, *self.tuned]

    @property
    def run(self) -> list[str]:
        """The columns that identify a run."""
        return [*self.point, *self.task, self.seed]

    @property
    def every(self) -> list[str]:
        """Every column with a role except ``trial``. The table may have no step column."""
        axis = [self.axis] if self.axis and self.axis != self.step else []
        return [*self.point, *self.task, self.score, self.seed, *self.ignore, self.step, *axis]

    @property
    def place(self) -> str:
        """The column that orders the evaluations of a run."""
        return self.axis or self.step

    @property
    def evaluations(self) -> int:
        """The number of last evaluations that a score averages, if there is no axis."""
        return WINDOW if self.window is None else int(self.window)

    def best(self, values: Sequence[float]) -> float:
        """Return the best of one or more values, none of which is NaN."""
        return max(values, key=lambda value: sign_of(self.mode or "max") * value)

    @property
    def keys(self) -> list[str]:
        """Names of the configuration's columns as trial parameters."""
        names = self.names
        return [
            f"by.{names[column]}" if names[column] in FIELDS else names[column]
            for column in self.point
        ]

    @property
    def names(self) -> dict[str, str]:
        """Column of a configuration -> its name without its settings file, as long as these names
        are distinct.
        """
        names = {column: SETTINGS_FILE.sub("", column) for column in self.point}
        if len(set(names.values())) < len(names):
            return {column: column for column in self.point}
        return names

    @property
    def metric(self) -> str:
        """Name of the score for use in sentences."""
        return f"best {self.score}" if self.take == "best" else self.score
