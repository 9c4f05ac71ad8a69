import math
from dataclasses import replace

import pandas as pd

from dashboards.pictures.cost import timeline
from tests.dashboards.table import sweep_of


def test_timeline_adds_up_time_and_cost() -> None:
    """Ten trials of 90 s, started a second apart, with 2 GPUs each: 99 s in all."""
    sweep = replace(sweep_of(), gpus_per_trial=2)
    picture = timeline(sweep)
    assert picture.sentence.startswith("10 trials in 1.65 minutes, 9.1 at a time on average; a trial takes 1.50 ")
    # 10 * 1.5 minutes * 2 GPUs; one trial of ten failed
    assert "All of it cost 30 GPU-minutes, 10% of that in trials that did not run to their end" in picture.sentence
    gantt, cost = picture.figures
    assert {bar.name: len(bar.y) for bar in gantt.data} == {"complete": 9, "fail": 1}
    assert list(gantt.data[1].base) == [9 / 60] and list(gantt.data[1].x) == [1.5]
    assert {x for dots in cost.data for x in dots.x} == {3.0}


def test_a_running_trial_reaches_to_now_and_costs_nothing_yet() -> None:
    sweep = sweep_of()
    trials = sweep.trials.iloc[:1].assign(
        state="RUNNING",
        score=math.nan,
        duration_s=math.nan,
        start=pd.Timestamp.now(tz="UTC") - pd.Timedelta("2min"),
    )
    picture = timeline(replace(sweep, trials=trials, status="RUNNING"))
    (gantt,) = picture.figures
    assert gantt.data[0].name == "running" and 2 <= gantt.data[0].x[0] < 3
