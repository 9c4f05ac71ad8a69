import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.tournament import Tuning, compare_rules, tuning_variance
from research.tournament_errors import Layout, claims
from tests.tables import table


def test_the_variance_of_tuning_is_that_of_the_best_of_halves():
    # However eight trials are split, one half has the 5 and the other a 1: half the square of 4.
    scores = [1, 5, *[1] * 6]
    assert tuning_variance(scores, scores) == pytest.approx(8.0)
    # chosen by another metric, the trial with the 5 is the last choice
    assert tuning_variance(scores, [-score for score in scores]) == 0.0


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_rule_is_judged_by_fresh_seeds_and_the_luck_of_tuning(mode):
    sign = 1 if mode == "max" else -1
    fresh = {
        "plain": {0: 0.0, 1: 0.0, 2: 0.0},
        "worse": {0: -sign * 1.0, 1: -sign * 2.0, 2: -sign * 3.0},
        "better": {0: sign * 11.0, 1: sign * 12.0, 2: sign * 13.0},
        "level": {0: sign * 5.0, 1: sign * 5.0, 2: sign * 5.0},
    }
    # 0.2 apart: variance 0.02, shared with the rules whose trials do not vary.
    tunings = dict.fromkeys(fresh, Tuning([sign * 1.0] * 8, 1)) | {
        "plain": Tuning([sign * 1.2, *[sign * 1.0] * 7], 1)
    }
    best, level, worst = compare_rules(fresh, "plain", tunings, mode)
    assert [best.rule, level.rule, worst.rule] == ["better", "level", "worse"]
    error = math.sqrt(1 / 3 + 0.02 / 4)
    half = stats.t.isf(0.05 / 3, 2) * error
    assert best.difference == pytest.approx(sign * 12)
    assert best.interval == pytest.approx((sign * 12 - half, sign * 12 + half))
    assert best.found.p == pytest.approx(3 * stats.t.sf(12 / error, 2))
    assert (best.better, level.better, worst.better) == (True, False, False)
    # the other side of the same test: 2 / error is no loss on three seeds
    assert worst.found.p_worse == pytest.approx(3 * stats.t.sf(2 / error, 2))
    assert not worst.worse and not best.worse and best.found.p_worse == 1
    assert level.interval is None and level.refusal == "no spread"
    assert worst.found.p == 1


@pytest.mark.parametrize(("base", "rule", "refusal"), table("compared_budgets"))
def test_what_the_trials_cannot_tell_is_not_compared(base, rule, refusal):
    tunings = {
        name: Tuning([*range(trials)], tuned)
        for name, (trials, tuned) in (("plain", base), ("AR", rule))
    }
    fresh = {"plain": {0: 0.0, 1: 0.0, 2: 0.0}, "AR": {0: 99.0, 1: 98.0, 2: 97.0}}
    (result,) = compare_rules(fresh, "plain", tunings)
    assert (result.refusal, result.interval is None, result.better) == (
        refusal,
        bool(refusal),
        not refusal,
    )


@pytest.mark.parametrize(
    "layout",
    [
        Layout((1, 1, 1), (8, 8, 8), same=True),
        Layout((1, 1, 1), (8, 8, 8), depth=20.0, same=False),
        Layout((1, 2, 1), (12, 24, 12), depth=5.0, same=False),
        Layout((1, 1), (16, 16), depth=5.0, same=False, failing=0.25),
    ],
)
def test_equal_rules_are_named_in_at_most_one_sweep_of_twenty(layout):
    sweeps = 300
    alone, verdict, refused = claims(replace(layout, seeds=5), sweeps)
    assert refused < 0.05 and verdict.mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / sweeps)
    assert np.all(alone | ~verdict)  # the allowance only widens
