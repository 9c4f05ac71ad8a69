from dataclasses import replace

import pandas as pd
import pytest

from dashboards.pictures.curves import failures, learning_curves, training_health
from tests.dashboards.table import sweep_of


def test_learning_curves_draw_every_trial_and_mark_the_failed() -> None:
    picture = learning_curves(sweep_of())
    dashes = [trace.line.dash for trace in picture.figures[0].data]
    assert dashes == ["solid"] * 9 + ["dot"]
    assert picture.sentence.startswith("From first to last evaluation 9 of 10 trials improve")
    assert set(picture.legend) == {"grpo", "grpo + AR", "grpo + Lopti", "rpp", "rpp + AR + Lopti"}


def test_a_rule_with_three_finished_trials_has_a_line_of_their_mean_at_the_steps_all_have() -> None:
    sweep = sweep_of()
    third = sweep.trials[sweep.trials.trial == "0-s0"].assign(trial="5-s0", configuration="5")
    values = [("5-s0", "eval/accuracy", step, value) for step, value in ((0, 0.3), (10, 0.9), (20, 0.4))]
    histories = pd.DataFrame(values, columns=sweep.histories.columns)
    picture = learning_curves(
        replace(
            sweep,
            trials=pd.concat([sweep.trials, third], ignore_index=True),
            histories=pd.concat([sweep.histories, histories], ignore_index=True),
        )
    )
    mean = picture.figures[0].data[-1]
    assert mean.name == "grpo" and list(mean.x) == [0, 20]
    assert list(mean.y) == pytest.approx([0.3, 0.5])  # of 0.5, 0.6 and 0.4
    assert "thick line is the mean" in picture.sentence
    assert "thick" not in learning_curves(sweep).sentence
    assert not picture.table[1]  # two evaluations have no ceiling


def test_speed_and_ceiling_of_a_rule_stand_below_its_curves() -> None:
    sweep = sweep_of()
    names = [f"{seed}-s0" for seed in range(3)]
    trials = pd.concat([sweep.trials[sweep.trials.trial == "0-s0"].assign(trial=name) for name in names])
    values = [
        (name, "eval/accuracy", step, 0.3 + 0.2 * step / (step + 10)) for name in names for step in range(0, 101, 10)
    ]
    histories = pd.DataFrame(values, columns=sweep.histories.columns)
    picture = learning_curves(replace(sweep, trials=trials, histories=histories))
    ((variant, count, end, half, ceiling),) = picture.table[1]
    assert (variant, count, end, half) == ("grpo", 3, "0.482", "8.3")  # 100 * 10 / 120
    assert str(ceiling).startswith("0.5")
    assert "speed and ceiling apart" in picture.sentence


def test_training_health_quotes_the_last_step() -> None:
    picture = training_health(sweep_of())
    assert len(picture.figures) == 1
    assert "KL to the reference 0.040 (0.040 to 0.040)" in picture.sentence


def test_failures_count_their_reasons() -> None:
    found = failures(sweep_of())
    assert found is not None and found.sentence == "1 of 10 trials failed (10%): 1 × diverged <b>."
    complete = replace(sweep_of(), trials=sweep_of().trials.iloc[:9])
    assert failures(complete) is None
