"""The trial scheduler: which trials are stopped early."""

from dataclasses import dataclass

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

from sweep.record.folder import SweepFolder
from sweep.record.summary import trial_rows
from sweep.space.spec import EVALUATION, SCORE, SweepSpec
from sweep.trials.trainable import windowed
from sweep.trials.worker import evaluation_history


def make_scheduler(spec: SweepSpec, folder: SweepFolder) -> TrialScheduler:
    """The trial scheduler, with the scores of the trials that ended in earlier sessions."""
    asha, median = spec.scheduler.asha, spec.scheduler.median
    common = {"time_attr": EVALUATION, "metric": SCORE, "mode": spec.objective.mode}
    if asha is not None:
        scheduler: TrialScheduler = ASHAScheduler(
            **common,
            max_t=max(spec.evaluations or 10_000, asha.grace_period),
            grace_period=asha.grace_period,
            reduction_factor=asha.reduction_factor,
            brackets=asha.brackets,
            stop_last_trials=False,
        )
    elif median is not None:
        scheduler = MedianStoppingRule(
            **common,
            grace_period=median.grace_period,
            min_samples_required=median.min_samples,
            min_time_slice=float("inf"),  # never pause a trial to let another one run
        )
    else:
        return FIFOScheduler()
    for row in trial_rows(spec, folder):
        if row.state in ("COMPLETE", "PRUNED"):
            _replay(scheduler, row.trial, folder, spec)
    return scheduler


@dataclass(frozen=True)
class _EndedTrial:
    trial_id: str


def _replay(scheduler: TrialScheduler, trial: str, folder: SweepFolder, spec: SweepSpec) -> None:
    history = evaluation_history(folder.trial(trial) / "metrics.jsonl", spec.objective.metric)
    ended = _EndedTrial(trial)
    scheduler.on_trial_add(None, ended)
    evaluated = sorted(step for step in history if step > 0)
    for count, last in enumerate(evaluated, start=1):
        seen = {step: value for step, value in history.items() if step <= last}
        result = {EVALUATION: count, SCORE: windowed(seen, spec.objective.window)}
        scheduler.on_trial_result(None, ended, result)
