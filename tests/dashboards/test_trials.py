import numpy as np
import pandas as pd
import pytest
from mlflow.entities import Metric, Param, Run, RunData, RunInfo, RunTag

from dashboards import trials
from dashboards.pictures.curves import learning_curves
from dashboards.sweep import Objective
from dashboards.trials import MAX_LINES, thinned, trials_table
from tests.dashboards.table import sweep_of


def trials_of(scores: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"trial": [f"t{number}" for number in range(len(scores))], "score": scores})


def test_of_many_trials_those_stay_that_are_spread_evenly_from_the_best_to_the_worst() -> None:
    scores = np.random.default_rng(0).permutation(3 * MAX_LINES) / 1000
    kept = thinned(trials_of(list(scores)), "max")
    assert len(kept) == MAX_LINES
    assert kept.index.is_monotonic_increasing
    assert kept.score.max() == scores.max()
    assert kept.score.min() == scores.min()
    assert np.diff(np.sort(kept.score)).max() <= 0.004 + 1e-9  # ranks are 3 or 4 apart


def test_trials_without_a_score_have_their_share_and_the_best_stays() -> None:
    trials = trials_of([float("nan")] * 300 + [0.001 * number for number in range(300)])
    kept = thinned(trials, "min")
    assert kept.score.isna().sum() == MAX_LINES // 2
    assert kept.score.min() == 0.0


def test_a_picture_says_that_it_shows_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of()
    assert "are drawn" not in learning_curves(sweep).sentence
    monkeypatch.setattr(trials, "MAX_LINES", 4)
    picture = learning_curves(sweep)
    assert len(picture.figures[0].data) == 4
    assert f"4 of {len(sweep.trials)} trials are drawn" in picture.sentence


def run_with(threshold: str, rule: str) -> Run:
    info = RunInfo("run", "0", "user", "FINISHED", 0, 1, "active")
    params = [Param("algorithm.loss.threshold", threshold), Param("algorithm.loss", rule)]
    return Run(info, RunData([Metric("final/score", 0.5, 0, 0)], params, [RunTag("mlflow.runName", rule)]))


def test_a_number_searched_in_a_range_is_missing_where_a_rule_does_not_have_it() -> None:
    histories = pd.DataFrame({"trial": [], "metric": [], "step": [], "value": []})
    kinds = {"algorithm.loss.threshold": "loguniform", "algorithm.loss": "by"}
    runs = [run_with("None", "clipped"), run_with("0.2", "dppo_tv")]
    table = trials_table(runs, histories, Objective(), tuple(kinds), kinds)
    assert table["algorithm.loss.threshold"].tolist() == pytest.approx([np.nan, 0.2], nan_ok=True)
    assert table["algorithm.loss"].tolist() == ["clipped", "dppo_tv"]
