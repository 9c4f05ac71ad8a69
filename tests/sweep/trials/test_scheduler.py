import pytest
from ray.tune.schedulers import TrialScheduler

from sweep.record.folder import SweepFolder
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import EVALUATION, SCORE
from sweep.space.file import load_space
from sweep.trials.scheduler import make_scheduler
from tests.sweep.ended_sweeps import write_sweep


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
    result = {EVALUATION: 1, SCORE: 0.4, "training_iteration": 1}
    assert made.on_trial_result(None, NewTrial(), result) == decision
