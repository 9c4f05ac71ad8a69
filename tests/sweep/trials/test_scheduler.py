from types import SimpleNamespace

import pytest
from ray.tune.schedulers import TrialScheduler

from sweep.record.folder import SweepFolder
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import EVALUATION, SCORE, STEP
from sweep.space.file import load_space
from sweep.space.spec import SchedulerSpec
from sweep.trials.scheduler import make_scheduler, trial_scheduler
from tests.sweep.ended_sweeps import write_sweep


def test_nobody_is_stopped_at_the_last_evaluation():
    asha = SchedulerSpec.model_validate({"asha": {"grace_period": 3, "reduction_factor": 2}})
    objective = SimpleNamespace(mode="max")
    scheduler = trial_scheduler(SimpleNamespace(scheduler=asha, objective=objective, evaluations=6))
    decisions = {3: [], 6: []}
    for number in range(8):
        trial = SimpleNamespace(trial_id=str(number))
        scheduler.on_trial_add(None, trial)
        for evaluation in decisions:
            result = {EVALUATION: evaluation, SCORE: 1.0 - 0.1 * number}
            decisions[evaluation].append(scheduler.on_trial_result(None, trial, result))
    assert TrialScheduler.STOP in decisions[3]
    assert {*decisions[6]} == {TrialScheduler.CONTINUE}


@pytest.mark.parametrize(
    ("scheduler", "scores", "decision"),
    [
        (
            {"asha": {"grace_period": 1, "reduction_factor": 2}},
            {0: 0.5, 1: 0.6, 2: 0.7},
            TrialScheduler.STOP,
        ),
        (
            {"asha": {"grace_period": 1, "reduction_factor": 2}},
            {0: 0.1, 1: 0.2, 2: 0.3},
            TrialScheduler.CONTINUE,
        ),
        ("none", {0: 0.5, 1: 0.6, 2: 0.7}, TrialScheduler.CONTINUE),
    ],
)
def test_a_scheduler_remembers_trials_of_earlier_sessions(tmp_path, scheduler, scores, decision):
    write_sweep(
        tmp_path,
        "demo",
        {number: {0: score} for number, score in scores.items()},
        scheduler=scheduler,
    )
    folder = SweepFolder(tmp_path, "demo")
    for number, score in scores.items():
        line = f'{{"step": 2, "time": 1.0, "eval/accuracy": {score}}}\n'
        (folder.trial(f"c00{number}-s0") / "metrics.jsonl").write_text(line)

    class NewTrial:
        trial_id = "new"

    made = make_scheduler(SweepRecord(load_space(folder.space), folder))
    made.on_trial_add(None, NewTrial())
    result = {EVALUATION: 1, SCORE: 0.4, STEP: 2, "training_iteration": 1}
    assert made.on_trial_result(None, NewTrial(), result) == decision


def test_a_trial_that_restarts_leaves_no_abandoned_score_behind():
    asha = SchedulerSpec.model_validate({"asha": {"grace_period": 1, "reduction_factor": 2}})
    objective = SimpleNamespace(mode="max")
    scheduler = trial_scheduler(SimpleNamespace(scheduler=asha, objective=objective, evaluations=9))
    restarted, other = (SimpleNamespace(trial_id=name) for name in ("restarted", "other"))
    for trial in (restarted, other):
        scheduler.on_trial_add(None, trial)

    def report(trial, evaluation, score):
        return scheduler.on_trial_result(None, trial, {EVALUATION: evaluation, SCORE: score})

    for evaluation in (1, 2, 3):  # rungs at 1, 2, 4
        report(restarted, evaluation, 0.9)
    report(restarted, 1, 0.1)  # the next process starts at the first evaluation
    assert report(other, 1, 0.5) == TrialScheduler.CONTINUE
    assert report(other, 2, 0.5) == TrialScheduler.CONTINUE
    # and its new score counts against it
    assert report(restarted, 2, 0.2) == TrialScheduler.STOP


def test_an_evaluation_without_a_score_stops_nobody():
    asha = SchedulerSpec.model_validate({"asha": {"grace_period": 1, "reduction_factor": 2}})
    objective = SimpleNamespace(mode="max")
    scheduler = trial_scheduler(SimpleNamespace(scheduler=asha, objective=objective, evaluations=9))
    trial = SimpleNamespace(trial_id="t")
    scheduler.on_trial_add(None, trial)
    assert scheduler.on_trial_result(None, trial, {EVALUATION: 1}) == TrialScheduler.CONTINUE


def test_trials_at_different_steps_are_not_compared(caplog):
    """One evaluates every 10 steps, the others every 100: of the first evaluations only those at
    step 100 are comparable.
    """
    asha = SchedulerSpec.model_validate({"asha": {"grace_period": 1, "reduction_factor": 2}})
    objective = SimpleNamespace(mode="max")
    scheduler = trial_scheduler(SimpleNamespace(scheduler=asha, objective=objective, evaluations=9))

    def report(name, evaluation, step, score):
        trial = SimpleNamespace(trial_id=name)
        if name not in scheduler._trial_info:
            scheduler.on_trial_add(None, trial)
        result = {EVALUATION: evaluation, STEP: step, SCORE: score}
        return scheduler.on_trial_result(None, trial, result)

    assert report("slow", 1, 100, 0.8) == TrialScheduler.CONTINUE
    assert not caplog.records
    assert report("fast", 1, 10, 0.1) == TrialScheduler.CONTINUE  # far below, but 90 steps earlier
    assert report("fast", 2, 20, 0.2) == TrialScheduler.CONTINUE
    assert len(caplog.records) == 1
    assert report("slow2", 1, 100, 0.7) == TrialScheduler.STOP
    assert report("fast2", 1, 10, 0.05) == TrialScheduler.STOP
    assert report("fast3", 1, 10, 0.2) == TrialScheduler.CONTINUE
    assert len(caplog.records) == 1
