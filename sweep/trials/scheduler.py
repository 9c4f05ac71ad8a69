"""The trial scheduler: which trials are stopped early."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

from sweep.record.sweep_record import SweepRecord, evaluation_history
from sweep.search.history import TrialKey
from sweep.search.trial_report import EVALUATION, SCORE
from sweep.space.arms import arm_of, arms
from sweep.space.spec import SchedulerSpec, SweepSpec
from sweep.trials.trainable import windowed


def make_scheduler(sweep: SweepRecord) -> TrialScheduler:
    """The trial scheduler, with the scores of the trials that ended in earlier sessions.

    Arms have a scheduler each: a rule that starts slowly is not stopped for the curves of another.
    """
    spec = sweep.spec
    if spec.scheduler == SchedulerSpec():
        return FIFOScheduler()
    scheduler = trial_scheduler(spec) if spec.search.tune_within is None else _ArmSchedulers(spec)
    for configuration in sweep.configurations:
        for seed, result in configuration.results.items():
            if result.state != "FAIL":
                name = TrialKey(configuration.number, seed).name
                _replay(scheduler, _EndedTrial(name, {"parameters": configuration.parameters}), sweep)
    return scheduler


def trial_scheduler(spec: SweepSpec) -> TrialScheduler:
    """The rule of one search that stops trials early; one that stops none is Tune's FIFO."""
    asha, median = spec.scheduler.asha, spec.scheduler.median
    common = {"time_attr": EVALUATION, "metric": SCORE, "mode": spec.objective.mode}
    if asha is not None:
        return ASHAScheduler(
            **common,
            max_t=max(spec.evaluations or 10_000, asha.grace_period),
            grace_period=asha.grace_period,
            reduction_factor=asha.reduction_factor,
            stop_last_trials=False,
        )
    if median is None:
        return FIFOScheduler()
    return MedianStoppingRule(
        **common,
        grace_period=median.grace_period,
        min_samples_required=median.min_samples,
        min_time_slice=float("inf"),  # never pause a trial to let another one run
    )


class _ArmSchedulers(FIFOScheduler):  # type: ignore[misc]
    """A scheduler for each arm."""

    def __init__(self, spec: SweepSpec) -> None:
        super().__init__()
        self._spec = spec
        self._own = {name: trial_scheduler(arm) for name, arm in arms(spec).items()}

    def _of(self, trial: Any) -> TrialScheduler:
        return self._own[arm_of(self._spec, trial.config["parameters"])]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """As of the arm's scheduler; so are all below."""
        self._of(trial).on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """The trial has failed."""
        self._of(trial).on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Whether the trial goes on."""
        return str(self._of(trial).on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """The trial has ended."""
        self._of(trial).on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """The trial is gone before it ran."""
        self._of(trial).on_trial_remove(tune_controller, trial)


@dataclass(frozen=True, eq=False)
class _EndedTrial:
    trial_id: str
    config: Mapping[str, Any]


def _replay(scheduler: TrialScheduler, ended: _EndedTrial, sweep: SweepRecord) -> None:
    objective = sweep.spec.objective
    history = evaluation_history(sweep.folder.trial(ended.trial_id) / "metrics.jsonl", objective.metric)
    scheduler.on_trial_add(None, ended)
    evaluated = sorted(step for step in history if step > 0)
    for count, last in enumerate(evaluated, start=1):
        seen = {step: value for step, value in history.items() if step <= last}
        result = {EVALUATION: count, SCORE: windowed(seen, objective.window)}
        scheduler.on_trial_result(None, ended, result)
