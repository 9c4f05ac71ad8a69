"""The trial scheduler: which trials are stopped early."""

import math
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from loptune.score import score
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import EVALUATION, SCORE
from sweep.space.spec import SchedulerSpec, SweepSpec
from sweep.trials.internals import forget_scores
from trainer.run_folder import RunFolder
from trainer.tracking.uploading import recorded_values


def make_scheduler(sweep: SweepRecord) -> TrialScheduler:
    """Return the trial scheduler, after replaying the scores of trials that ended in earlier
    sessions.
    """
    spec = sweep.spec
    scheduler = trial_scheduler(spec)
    if spec.scheduler == SchedulerSpec():
        return scheduler
    for trial in sweep.results:
        if trial.state != "FAIL":
            _replay(scheduler, _ReplayedTrial(trial.name), sweep)
    return scheduler


def trial_scheduler(spec: SweepSpec) -> TrialScheduler:
    """Return Tune's scheduler for early stopping, or FIFO without it."""
    asha = spec.scheduler.asha
    if asha is None:
        return FIFOScheduler()
    return ForgettingASHA(
        time_attr=EVALUATION,
        metric=SCORE,
        mode=spec.objective.mode,
        # no rung at the last evaluation: stopping a trial there saves nothing
        max_t=max((spec.evaluations or 10_000) - 1, asha.grace_period),
        grace_period=asha.grace_period,
        reduction_factor=asha.reduction_factor,
        stop_last_trials=False,
    )


class ForgettingASHA(ASHAScheduler):  # type: ignore[misc]
    """ASHA that forgets a trial's scores of evaluations that the trial makes again.

    A trial that restarts before an evaluation reaches the same rungs once more. Its abandoned
    scores there must neither count for it nor raise the bar for the other trials.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._evaluations: dict[str, int] = {}  # trial id -> its latest evaluation

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Forget abandoned scores, then decide as ASHA does."""
        evaluation = result.get(EVALUATION)
        if evaluation is not None:
            if evaluation <= self._evaluations.get(trial.trial_id, 0):
                forget_scores(self, trial.trial_id, evaluation)
            self._evaluations[trial.trial_id] = evaluation
        return str(super().on_trial_result(tune_controller, trial, result))


@dataclass(frozen=True, eq=False)
class _ReplayedTrial:
    trial_id: str


def _replay(scheduler: TrialScheduler, ended: _ReplayedTrial, sweep: SweepRecord) -> None:
    objective = sweep.spec.objective
    run_folder = RunFolder(sweep.folder.trial(ended.trial_id))
    history = recorded_values(run_folder.metrics, objective.metric)
    scheduler.on_trial_add(None, ended)
    evaluated = sorted(step for step in history if step > 0)
    for count, last in enumerate(evaluated, start=1):
        if not math.isfinite(history[last]):
            continue  # it was reported without a score
        seen = {step: value for step, value in history.items() if step <= last}
        result = {EVALUATION: count, SCORE: score(seen, objective.window)}
        scheduler.on_trial_result(None, ended, result)
