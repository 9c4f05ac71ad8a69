import math
from dataclasses import replace

import pandas as pd

from dashboards.pictures.cost import cost
from tests.dashboards.table import sweep_of


def test_time_and_cost_add_up() -> None:
    """Ten trials of 90 s, started a second apart, with 2 GPUs each: 99 s in all."""
    picture = cost(replace(sweep_of(), gpus_per_trial=2))
    assert picture.sentence.startswith("10 trials in 1.65 minutes, 9.1 at a time on average; a trial takes 1.50 ")
    # 10 * 1.5 minutes * 2 GPUs; one trial of ten failed
    assert "All of it cost 30 GPU-minutes, 10% of that in trials that did not run to their end" in picture.sentence
    assert {x for dots in picture.figures[0].data for x in dots.x} == {3.0}


def test_a_running_trial_reaches_to_now_and_costs_nothing_yet() -> None:
    sweep, start = sweep_of(), pd.Timestamp.now(tz="UTC") - pd.Timedelta("120min")
    running = {"state": "RUNNING", "score": math.nan, "duration_s": math.nan, "start": start}
    picture = cost(replace(sweep, trials=sweep.trials.iloc[:1].assign(**running), status="RUNNING"))
    assert picture.figures == () and picture.sentence.startswith("1 trials in 12")  # 120 minutes, or some more
