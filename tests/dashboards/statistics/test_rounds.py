import math

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics import rounds
from dashboards.statistics.comparison import compare
from dashboards.statistics.dunnett import critical_value
from dashboards.statistics.group_sequential import Design
from dashboards.statistics.rounds import boundaries, interim_results, make_design, schedule_analyses
from dashboards.statistics.seed_noise import Noise
from research.decide import in_rounds


def test_a_design_leaves_nothing_open_at_its_end():
    design = make_design(Noise(0.01, 18), 0.01, 1, 100)
    reach = (design.efficacy[-1] + design.futility[-1]) * 0.01 * math.sqrt(2 / design.analyses[-1])
    assert 0.9 * 0.01 < reach <= 0.01
    assert make_design(Noise(0.01, 18), 0.001, 1, 20).analyses[-1] == 20  # no more than allowed
    assert make_design(None, 0.01, 1, 12).analyses[-1] == 12


def test_a_single_look_of_several_finalists_is_dunnetts_test():
    efficacy, futility = boundaries((4,), 3)
    assert efficacy[0] == pytest.approx(critical_value(3, 9), rel=0.02)
    assert futility[0] == pytest.approx(stats.t.isf(0.1, 3), rel=0.02)  # each is given up by itself


def test_looks_are_spread_over_the_seeds():
    assert schedule_analyses(3) == (3,)
    assert schedule_analyses(7) == (5, 6, 7)
    assert schedule_analyses(41) == (5, 10, 15, 20, 26, 31, 36, 41)


def test_a_finalist_is_judged_at_its_look():
    design = Design((3, 6), 2, 0.02, (3.0, 2.0), (2.5, 1.5))
    scores = {
        "base": {s: 0.50 + 0.01 * s for s in range(3)},
        "good": {s: 0.55 + 0.02 * s for s in range(3)},
        "same": {0: 0.505, 1: 0.505, 2: 0.52},
    }
    results = interim_results(design, scores, "base", "max")
    by_finalist = {result.configuration: result for result in results}
    good = by_finalist["good"]
    assert (good.seeds, good.outcome) == (3, "better") and good.gain == pytest.approx(0.06)
    verdicts = compare(scores, "base", design.thresholds).differences
    assert good.interval == verdicts[0].interval
    low, high = good.interval
    error = (high - low) / (3.0 + 2.5)
    assert low == pytest.approx(0.06 - 3.0 * error)
    assert error >= 0.01 / math.sqrt(3)  # at least that of its own differences, 0.05, 0.06 and 0.07
    assert by_finalist["same"].outcome == "not better"
    before = {name: {seed: row[seed] for seed in (0, 1)} for name, row in scores.items()}
    assert {result.outcome for result in interim_results(design, before, "base", "max")} == {
        "undecided"
    }


@pytest.mark.parametrize(("finalists", "finalist_noise"), [(1, 1.0), (1, 3.0), (3, 1.0), (3, 3.0)])
def test_errors_of_the_whole_procedure(monkeypatch, finalists, finalist_noise):
    monkeypatch.setattr(rounds, "PATHS", 20_000)
    boundaries.cache_clear()
    design = make_design(Noise(1.0, 18), 1.5, finalists, 40)
    generator = np.random.default_rng(5)
    scores = generator.standard_normal((4000, finalists + 1, design.analyses[-1]))
    scores[:, 1] *= finalist_noise
    assert (in_rounds(design, scores)[0] == 1).any(axis=1).mean() <= 0.05 + 2 * math.sqrt(
        0.05 * 0.95 / 4000
    )
    scores[:, 1] += 1.5
    assert (in_rounds(design, scores)[0][:, 0] == -1).mean() <= 0.1 + 2 * math.sqrt(
        0.1 * 0.9 / 4000
    )
    boundaries.cache_clear()


def test_finalists_of_a_look_share_their_noise_and_a_correction():
    scores = {
        "base": {0: 0.50, 1: 0.52, 2: 0.49, 3: 0.51, 4: 0.50},
        "a": {0: 0.55, 1: 0.56, 2: 0.55, 3: 0.57, 4: 0.54},
        "b": {0: 0.40, 1: 0.60, 2: 0.35, 3: 0.65, 4: 0.50},
    }
    bounds = {}
    for finalists in (("a",), ("a", "b")):
        some = {name: scores[name] for name in ("base", *finalists)}
        first = interim_results(make_design(None, 0.02, 2, 8), some, "base", "max")[0]
        bounds[finalists] = first.interval[0]
    assert bounds["a",] > 0 > bounds["a", "b"]  # b is noisy


def test_the_boundaries_are_those_of_the_latest_analysis():
    design = Design((3, 5), 1, 0.01, (3.0, 2.0), (2.5, 1.5))
    assert list(map(design.thresholds, (2, 4, 9))) == [None, (3.0, 2.5), (2.0, 1.5)]


def test_two_seeds_decide_nothing():
    design = Design((2,), 1, 0.01, (3.0,), (2.5,))
    scores = {"base": {0: 0.5, 1: 0.501}, "good": {0: 0.9, 1: 0.902}}
    (result,) = interim_results(design, scores, "base", "max")
    assert result.outcome == "undecided" and result.better
