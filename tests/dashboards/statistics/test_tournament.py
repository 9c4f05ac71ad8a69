import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.tournament_errors import claims
from dashboards.statistics.tournament import standings, tuning_variance


def test_the_variance_of_tuning_is_that_of_the_best_of_halves() -> None:
    # However eight trials are split, one half has the 5 and the other a 1: half the square of 4.
    assert tuning_variance({"A": [1, 5, *[1] * 6]}) == pytest.approx(8.0)
    assert tuning_variance({"A": [1, 5, *[1] * 6], "B": [2] * 8, "C": [9, *[1] * 6]}) == pytest.approx(4.0)
    assert tuning_variance({"A": [-1, -5, *[-1] * 6]}, "min") == pytest.approx(8.0)
    assert math.isnan(tuning_variance({"A": [1, 2, 3, 4, 5, 6, 7]}))


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_rule_is_judged_by_fresh_seeds_and_the_luck_of_tuning(mode) -> None:
    sign = 1 if mode == "max" else -1
    fresh = {
        "plain": {0: 0.0, 1: 0.0, 2: 0.0},
        "worse": {0: -sign * 1.0, 1: -sign * 2.0, 2: -sign * 3.0},
        "better": {0: sign * 11.0, 1: sign * 12.0, 2: sign * 13.0},
        "failed": {0: sign * 5.0, 1: math.nan, 2: sign * 5.1},
    }
    tuned = {"plain": [sign * 1.2, *[sign * 1.0] * 7]}  # 0.2 apart: variance 0.02
    best, failed, worst = standings(fresh, "plain", tuned, mode)
    assert [best.rule, failed.rule, worst.rule] == ["better", "failed", "worse"]
    error = math.sqrt(1 / 3 + 0.02)
    half = stats.t.isf(0.05 / 3, 2) * error
    assert best.difference == pytest.approx(sign * 12)
    assert best.interval == pytest.approx((sign * 12 - half, sign * 12 + half))
    assert best.p_value == pytest.approx(3 * stats.t.sf(12 / error, 2))
    assert (best.better, failed.better, worst.better) == (True, False, False)
    assert failed.interval is None and failed.p_value is None
    assert worst.p_value == 1
    assert not any(one.better for one in standings(fresh, "plain", {"plain": [1.0]}, mode))  # tuning unknown


@pytest.mark.parametrize(("depth", "same"), [(0.0, True), (5.0, True), (5.0, False), (20.0, False)])
def test_rules_that_are_equal_at_their_best_are_named_in_no_more_than_one_sweep_of_twenty(depth, same) -> None:
    sweeps = 300
    alone, verdict = claims((3, 8, 5), depth, same, 0.0, sweeps)
    assert verdict.mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / sweeps)
    assert np.all(alone | ~verdict)  # the allowance only widens
