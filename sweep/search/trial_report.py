"""What a trial reports to Ray Tune: after every evaluation, and where it ends without one."""

from dataclasses import asdict, dataclass, fields
from typing import Any

Result = dict[str, Any]  # what a trial reports to Tune, and Tune passes on

# Fields by which schedulers and searchers find them in Tune's results.
SCORE = "score"
EVALUATION = "evaluation"
# in a trial's configuration: its last failure, after which it is not tried again
GIVEN_UP = "given_up"


@dataclass(frozen=True)
class TrialReport:
    """The state of a trial. Tune passes it on as a mapping from field to value, beside metrics and
    keys of its own.
    """

    step: int = 0  # training step
    # the objective: mean of the last `window` evaluations; None without a new one
    score: float | None = None
    evaluation: int | None = None  # evaluations after the first training step: the schedulers' time
    total_steps: int = 0  # 0 where the program does not tell
    finished: bool = False  # trained to its end
    interrupted: bool = False  # the sweep was stopped: the trial keeps its place and goes on later
    reason: str = ""  # why it failed in a way that a retry would only repeat
    # what, where and hint of a fault that interrupted it
    storage: tuple[str, str, str] | None = None

    def to_result(self, **metrics: Any) -> Result:
        """Return the result that Tune gets."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        is_done = self.finished or self.interrupted or bool(self.reason)
        return {**metrics, **values, "done": is_done}

    @classmethod
    def of(cls, result: Result | None) -> "TrialReport":
        """Read a result of Tune; None is one before the first."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: value for name, value in (result or {}).items() if name in names})
