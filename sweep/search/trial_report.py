"""The report of a trial after each evaluation, or at its end if there is no new evaluation. A rank
creates it, the trial passes it to Ray Tune, and searcher, scheduler and driver read it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from dashboards.statistics.scoring import Scoring, Values
from loptune.errors import CommandError, DivergedError, ProgramError, StorageError, joined

TuneResult = dict[str, Any]  # the result that a trial reports to Tune, and Tune passes on

# Result keys that schedulers and searchers read.
SCORE = "score"
EVALUATION = "evaluation"
STEP = "step"  # training step of the evaluation
# config key with the `Failure` after which a trial is not retried
GIVEN_UP = "given_up"
_BY_SETTINGS = (DivergedError, ProgramError, CommandError)
_METRICS = "eval/"  # prefix of the metrics of an evaluation


class Failure(NamedTuple):
    """The failure of a trial, as Tune passes it on.

    Settings explain a divergence, a missing or non-finite score, lines of a command that cannot be
    read, and a command that exited with an error on every retry, as programs that check for NaN
    do. Any other failure (memory, a signal, silence until `limits.stall_timeout_s`, a dead worker)
    may be the fault of the machine, and is not evidence against the configuration.
    """

    reason: str
    by_settings: bool = False  # whether settings or program explain it

    @classmethod
    def of(cls, error: BaseException, reason: str) -> "Failure":
        """Return the failure with this error, which Ray may have wrapped."""
        return cls(reason, isinstance(cause_of(error), _BY_SETTINGS))


def cause_of(error: BaseException) -> BaseException:
    """Return the error that was raised in another process, if Ray wrapped it."""
    return getattr(error, "cause", None) or error


class StorageFault(NamedTuple):
    """The parts of a storage error, as Tune passes them on."""

    what: str
    where: str
    hint: str
    key: str
    code: str

    @classmethod
    def of(cls, error: StorageError) -> "StorageFault":
        """Return the parts of an error."""
        return cls(error.what, error.where, error.hint, error.key, error.code)

    def error(self) -> StorageError:
        """Return the error."""
        return StorageError(self.what, self.where, self.hint, self.key, code=self.code)


@dataclass(frozen=True)
class TrialReport:
    """The state of a trial. Tune passes it on as a dict with these fields, the metrics and Tune's
    own keys.
    """

    step: int = 0  # training step
    # score so far, as the objective defines it; None without a new evaluation, or if there is no
    # score
    score: float | None = None
    no_score: str = ""  # why an evaluation has given no score
    second: float | None = None  # second objective so far
    # number of evaluations so far, without the evaluation before training; the scheduler's time
    # attribute
    evaluation: int | None = None
    total_steps: int = 0  # 0 if unknown
    finished: bool = False  # trained to its end
    stopped: bool = False  # the sweep was stopped: the trial has no result and resumes later
    reason: str = ""  # failure that a retry would repeat
    by_settings: bool = False  # whether settings or program explain the failure, see `Failure`
    storage: StorageFault | None = None  # storage error that stopped the trial
    metrics: Mapping[str, float] = field(default_factory=dict)  # eval/* of this evaluation

    def scored(self, scoring: Scoring, values: Values) -> "TrialReport":
        """Return the report with the score of these evaluations, without a score if the last one is
        not finite.

        Raises:
            ProgramError: the trial has finished without an evaluation that its score needs.
            DivergedError: the last two evaluations are not finite, or the last one of a trial that
            has finished. A single non-finite evaluation between finite ones may only be a failed
            evaluation.
        """
        history = scoring.history(values)
        last = [history[step] for step in sorted(history)] or [math.nan]
        is_last_finite = math.isfinite(last[-1])
        is_earlier_finite = len(last) == 1 or math.isfinite(last[-2])
        if self.finished and not scoring.is_plain:
            scoring.check_complete(values)
        if not is_last_finite and (self.finished or not is_earlier_finite):
            raise DivergedError(self.step, scoring.name, last[-1])
        score = scoring.score(values)
        no_score = ""
        if not history:
            no_score = f"no step has logged {joined(scoring.metrics)} yet"
        elif not is_last_finite:
            no_score = "the evaluation is not finite; two in a row fail the trial"
        elif not math.isfinite(score):  # possible for a score along an axis
            no_score = "too few evaluations so far"
        return replace(
            self,
            score=None if no_score else score,
            no_score=no_score,
            evaluation=sum(1 for step in history if step > 0),
        )

    def to_result(self, **more: Any) -> TuneResult:
        """Return the result that Tune gets."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        metrics = values.pop("metrics")
        is_done = self.finished or self.stopped or bool(self.reason)
        return {**metrics, **more, **values, "done": is_done}

    @classmethod
    def of(cls, result: TuneResult | None) -> "TrialReport":
        """Read a Tune result; None means no result yet."""
        given = result or {}
        names = {field.name for field in fields(cls)} - {"metrics"}
        values = {name: value for name, value in given.items() if name in names}
        metrics = {name: value for name, value in given.items() if name.startswith(_METRICS)}
        return cls(**values, metrics=metrics)
