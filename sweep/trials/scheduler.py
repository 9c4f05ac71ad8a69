"""The trial scheduler, which decides on early stopping."""

import logging
import math
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from dashboards.statistics.scoring import until
from loptune.files import read_records
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import EVALUATION, SCORE, STEP
from sweep.space.scoring import scoring_of
from sweep.space.spec import SchedulerSpec, SweepSpec
from sweep.trials.internals import forget_scores, milestones_reached, only_scores
from trainer.run_folder import RunFolder

logger = logging.getLogger(__name__)


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
    """Return Tune's scheduler for early stopping, or FIFO if nothing is stopped early."""
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
    """ASHA that forgets the scores of evaluations that a trial repeats, and compares a trial only
    with trials that were evaluated at the same training step.

    A trial that restarts before an evaluation reaches the same rungs once more. Its discarded
    scores there must neither count for it nor raise the threshold for other trials.

    Rungs count evaluations. If trials evaluate at different intervals, a rung would compare a trial
    after 20 training steps with a trial after 200.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._evaluations: dict[str, int] = {}  # trial id -> its latest evaluation
        # (trial id, milestone of a rung) -> training step of its score there
        self._steps: dict[tuple[str, int], int | None] = {}
        self._has_warned = False

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Forget discarded scores, then decide as ASHA does among trials at the same step."""
        name = trial.trial_id
        evaluation = result.get(EVALUATION)
        if evaluation is not None:
            if evaluation <= self._evaluations.get(name, 0):
                forget_scores(self, name, evaluation)
            self._evaluations[name] = evaluation
        step = result.get(STEP)
        earlier = set(milestones_reached(self, name))

        def is_comparable(milestone: int, other: str) -> bool:
            if evaluation is None or evaluation < milestone or milestone in earlier:
                return True  # no decision at this rung
            if self._steps.get((other, milestone)) == step:
                return True
            self._warn(
                milestone,
                trial=name,
                step=step,
                other=other,
                other_step=self._steps.get((other, milestone)),
            )
            return False

        with only_scores(self, name, is_comparable):
            decision = str(super().on_trial_result(tune_controller, trial, result))
        for milestone in milestones_reached(self, name):
            if milestone not in earlier:
                self._steps[name, milestone] = step
        return decision

    def _warn(
        self, milestone: int, *, trial: str, step: Any, other: str, other_step: int | None
    ) -> None:
        """Warn once that trials are evaluated at different steps."""
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "trials are evaluated at different training steps: evaluation %d is at step %s of %s "
            "and at step %s of %s. ASHA compares only trials at the same step, so it stops fewer "
            "trials. To compare all trials, evaluate every trial at the same steps.",
            milestone,
            step,
            trial,
            other_step,
            other,
        )


@dataclass(frozen=True, eq=False)
class _ReplayedTrial:
    trial_id: str


def _replay(scheduler: TrialScheduler, ended: _ReplayedTrial, sweep: SweepRecord) -> None:
    """Report the recorded evaluations of an ended trial to the scheduler."""
    scoring = scoring_of(sweep.spec)
    values = scoring.values(read_records(RunFolder(sweep.folder.trial(ended.trial_id)).metrics))
    history = scoring.history(values)
    scheduler.on_trial_add(None, ended)
    evaluated = sorted(step for step in history if step > 0)
    for count, last in enumerate(evaluated, start=1):
        if not math.isfinite(history[last]):
            continue  # this evaluation was reported without a score
        seen = {metric: until(values[metric], last) for metric in values}
        result = {EVALUATION: count, SCORE: scoring.score(seen), STEP: last}
        scheduler.on_trial_result(None, ended, result)
