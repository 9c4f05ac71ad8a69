from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dashboards.pictures import curves
from dashboards.pictures.curves import (
    MAX_LINES,
    failures,
    learning_curves,
    thinned,
    training_health,
)
from dashboards.trial import Curve
from tests.dashboards.table import results_of, shown, with_trials


def test_learning_curves_draw_every_trial_and_mark_the_failed():
    picture = shown(learning_curves(results_of()))
    of_trials = [trace for trace in picture.figures[0].data if "mean" not in trace.hovertext]
    assert [trace.line.dash for trace in of_trials] == ["solid"] * 9 + ["dot"]
    assert picture.sentence.startswith(
        "From the first to the last evaluation, 9 of 10 trials improve"
    )
    assert set(picture.legend) == {"grpo", "grpo + AR", "grpo + Lopti", "rpp", "rpp + AR + Lopti"}


def test_means_over_seeds_of_the_baseline_and_the_best_are_drawn():
    picture = shown(learning_curves(results_of()))
    means = [trace for trace in picture.figures[0].data if "mean" in trace.hovertext]
    assert [list(trace.x) for trace in means] == [[0, 20], [0, 20]]
    assert list(means[0].y) == pytest.approx([0.3, 0.55])  # seeds 0.50 and 0.60
    assert list(means[1].y) == pytest.approx([0.3, 0.75])  # seeds 0.70 and 0.80
    one_seed = with_trials(results_of(), results_of().table.query("seed == '0'"))
    data = shown(learning_curves(one_seed)).figures[0].data
    assert not [trace for trace in data if "mean" in trace.hovertext]


def test_training_health_quotes_the_last_step_of_what_happened():
    sweep = results_of()
    never = {"reward/timeouts": Curve((10, 20), (0.0, 0.0))}
    trials = tuple(replace(trial, curves={**trial.curves, **never}) for trial in sweep.trials)
    picture = shown(training_health(replace(sweep, trials=trials)))
    assert len(picture.figures) == 1
    assert "KL to the reference 0.040 (0.040 to 0.040)" in picture.sentence


def test_failures_count_their_reasons():
    picture = failures(results_of())
    assert (
        picture is not None and picture.sentence == "1 of 10 trials failed (10%): 1 × diverged <b>."
    )
    complete = with_trials(results_of(), results_of().table.iloc[:9])
    assert failures(complete) is None


def trials_of(scores):
    return pd.DataFrame({"trial": [f"t{number}" for number in range(len(scores))], "score": scores})


def test_many_trials_are_thinned_evenly_from_best_to_worst():
    scores = np.random.default_rng(0).permutation(3 * MAX_LINES) / 1000
    kept = thinned(trials_of(list(scores)), 1)
    assert len(kept) == MAX_LINES
    assert kept.score.max() == scores.max() and kept.score.min() <= 0.002
    assert np.diff(np.sort(kept.score)).max() == pytest.approx(0.003)


def test_a_picture_says_that_it_shows_a_part(monkeypatch):
    sweep = results_of()
    assert "are shown" not in shown(learning_curves(sweep)).sentence
    monkeypatch.setattr(curves, "MAX_LINES", 4)
    picture = shown(learning_curves(sweep))
    assert len([trace for trace in picture.figures[0].data if "mean" not in trace.hovertext]) == 4
    assert f"4 of {len(sweep.trials)} trials are shown" in picture.sentence
