"""What a trial reports to Ray Tune after each evaluation, and when it ends without one."""

from dataclasses import asdict, dataclass, fields
from typing import Any

TuneResult = dict[str, Any]  # what a trial reports to Tune, and Tune passes on

# Result keys that schedulers and searchers read.
SCORE = "score"
EVALUATION = "evaluation"
# config key with a trial's last failure, after which it is not retried
GIVEN_UP = "given_up"


@dataclass(frozen=True)
class TrialReport:
    """The state of a trial. Tune passes it on as a dict of these fields, metrics and its own
    keys.
    """

    step: int = 0  # training step
    # objective: mean of the last `window` evaluations; None without a new evaluation
    score: float | None = None
    # evaluations after the first training step; the scheduler's time attribute
    evaluation: int | None = None
    total_steps: int = 0  # 0 if unknown
    finished: bool = False  # trained to its end
    stopped: bool = False  # the sweep was stopped: the trial has no result and resumes later
    reason: str = ""  # failure that a retry would repeat
    # (what, where, hint, code) of a storage error that stopped it
    storage: tuple[str, str, str, str] | None = None

    def to_result(self, **metrics: Any) -> TuneResult:
        """Return the result that Tune gets."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        is_done = self.finished or self.stopped or bool(self.reason)
        return {**metrics, **values, "done": is_done}

    @classmethod
    def of(cls, result: TuneResult | None) -> "TrialReport":
        """Read a Tune result; None means no result yet."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: value for name, value in (result or {}).items() if name in names})
