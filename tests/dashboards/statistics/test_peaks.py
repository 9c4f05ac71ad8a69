import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dashboards import judge
from dashboards.headline import verdict_sentences
from dashboards.pages.report import chapters_of
from dashboards.statistics.peaks import Grid, compare_peaks, fitted_peak, jackknife

RATES = np.array([1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3])
PLACE = {"grpo": -11.0, "lopti": -12.3, "ar": -11.0}  # log2 of the best learning rate
GAIN = {"grpo": 0.0, "lopti": 0.0, "ar": 0.1}


def frame(noise=0.005):
    """Three rules on six learning rates and four seeds: lopti is grpo at a smaller learning rate,
    ar is better.
    """
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {
                "loss": loss,
                "lr": rate,
                "seed": seed,
                "acc": score + noise * generator.standard_normal(),
            }
            for loss, place in PLACE.items()
            for rate in RATES
            for score in [0.6 + GAIN[loss] - 0.02 * (np.log2(rate) - place) ** 2]
            for seed in range(4)
        ]
    )


def judged(table, mode="max"):
    asked = {
        "by": ["loss"],
        "baseline": {"loss": "grpo"},
        "score": "acc",
        "seed": "seed",
        "tuned": ["lr"],
    }
    return judge(table, mode=mode, **asked).results


def peak_results(table, mode="max"):
    grid = judged(table, mode).tuned_rules.grid
    assert grid is not None
    return compare_peaks(grid)


def test_an_exact_parabola_has_its_vertex_and_no_misfit():
    octaves = np.log2(RATES)
    peak = fitted_peak(octaves, 0.6 - 0.02 * (octaves + 11.3) ** 2)
    assert (peak.score, peak.octave, peak.inside) == (
        pytest.approx(0.6),
        pytest.approx(-11.3),
        True,
    )
    assert peak.max_residual < 1e-12
    lowest = fitted_peak(octaves, 0.3 + 0.02 * (octaves + 11.3) ** 2, sign=-1)
    assert (lowest.score, lowest.inside) == (pytest.approx(0.3), True)
    assert not fitted_peak(octaves, 0.3 + 0.02 * (octaves + 11.3) ** 2).inside  # opens upward
    assert not fitted_peak(octaves, 0.01 * octaves).inside  # still climbs


def test_the_jackknife_of_a_mean_is_the_interval_of_student():
    values = np.array([0.1, 0.4, 0.2, 0.5, 0.9])
    parts = [float(np.delete(values, place).mean()) for place in range(5)]
    by_hand = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert jackknife(float(values.mean()), parts) == pytest.approx((by_hand.low, by_hand.high))


def test_a_larger_effective_learning_rate_is_no_gain_and_a_gain_is_one():
    _, lopti, ar = peak_results(frame())
    assert ar.at_best is not None and ar.at_best.interval[0] > 0.08
    assert lopti.at_best is not None and lopti.at_best.interval[0] < 0 < lopti.at_best.interval[1]
    # at the rate that suits grpo
    assert lopti.at_same is not None and lopti.at_same.interval[1] < 0
    least = peak_results(frame().assign(acc=lambda table: -table.acc), mode="min")
    assert [result.peak.octave for result in least] == [
        result.peak.octave for result in peak_results(frame())
    ]


def test_equal_peaks_are_rarely_called_different():
    generator = np.random.default_rng(0)
    octaves = np.arange(7) / 2
    means = 0.6 - 0.02 * (octaves - np.array([[1.5], [0.8], [1.5]])) ** 2
    # collapse at high rates
    means -= 0.1 * np.clip(octaves - np.array([[2.25], [1.55], [2.25]]), 0, None) ** 2
    claims = 0
    compared = 0
    for _ in range(300):
        scores = means[:, :, None] + 0.02 * generator.standard_normal((3, 7, 4))
        _, *rivals = compare_peaks(Grid("lr", ["a", "b", "c"], 2**octaves, scores))
        differences = [rival.at_best for rival in rivals if rival.at_best is not None]
        claims += any(difference.interval[0] > 0 for difference in differences)
        compared += len(differences)
    assert compared > 500
    assert claims / 300 < 0.1  # 5% and four standard errors


def test_the_report_draws_the_parabolas_and_says_both_differences():
    results = judged(frame())
    picture = chapters_of(results)["Verdict"][0]
    assert picture.key == "peaks" and len(picture.figures[0].data) == 9
    headings, rows = picture.table
    assert [row[0] for row in rows] == list(results.arms) and headings[
        3
    ] == "difference, each at its peak"
    assert (
        "each at its best" in verdict_sentences(results)[0]
        and "at lr 0.0004" in verdict_sentences(results)[0]
    )


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_line_calls_no_rule_better(mode):
    sign = 1 if mode == "max" else -1
    results = judged(frame().assign(acc=lambda table: sign * table.acc), mode)
    line = verdict_sentences(results)[0]
    assert "ar +0.1" in line.replace("-0.1", "+0.1") and "each at its best" in line
    assert "better" not in line and "worse" not in line and "only fresh seeds" in line


def test_no_grid_with_an_empty_cell_failed_trials_count_as_worst():
    whole = frame()
    assert (
        judged(whole.drop(index=3)).tuned_rules.grid is None
    )  # a run that nobody made has not failed
    assert judged(whole[(whole.loss != "ar") | (whole.lr != RATES[2])]).tuned_rules.grid is None
    assert judged(whole[whole.lr < 1e-3]).tuned_rules.grid is None  # four values
    assert judged(whole[whole.seed < 2]).tuned_rules.grid is None
    lost = judged(whole.assign(acc=whole.acc.where(whole.index != 3)))
    assert lost.tuned_rules.grid is not None
    assert lost.tuned_rules.grid.scores[0, 0, 3] == pytest.approx(whole.acc.drop(index=3).min())
