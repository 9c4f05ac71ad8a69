import math

import numpy as np
import pytest

from dashboards.statistics.forecast import Curve, Forecast, saturation

EVALUATIONS, WINDOW = 10, 3


def _curves(random: np.random.Generator, count: int) -> np.ndarray:
    """Curves of the model: ends differ by 1, a Brownian motion of 0.4, evaluations with a noise of 0.3."""
    share = np.arange(1, EVALUATIONS + 1) / EVALUATIONS
    learned = 1.3 * share / (share + 0.3)
    wander = 0.4 * random.standard_normal((count, EVALUATIONS)).cumsum(axis=1) / math.sqrt(EVALUATIONS)
    noise = 0.3 * random.standard_normal((count, EVALUATIONS))
    return (2 + random.standard_normal((count, 1))) * learned + wander + noise


def _half_known(values: np.ndarray, known: int) -> list[Curve]:
    """The first half of the trials whole, of the others the first ``known`` evaluations."""
    whole = len(values) // 2
    return [Curve(trial, tuple(own if trial < whole else own[:known])) for trial, own in enumerate(values)]


def test_intervals_hold_their_share_of_final_scores_and_narrow_with_time() -> None:
    random, held, widths = np.random.default_rng(0), [], {3: 0.0, 7: 0.0}
    for _ in range(12):
        values = _curves(random, 20)
        for known in widths:
            forecast = Forecast.of(_half_known(values, known), EVALUATIONS, WINDOW)
            for trial in range(10, 20):
                low, high = forecast.interval(trial, 0.8)
                held.append(low <= values[trial, -WINDOW:].mean() <= high)
                widths[known] += high - low
    error = math.sqrt(0.8 * 0.2 / 24)  # trials of one sweep share a mean curve: 24 sweeps, not 240 trials
    assert abs(np.mean(held) - 0.8) < 3 * error
    assert widths[7] < 0.7 * widths[3]


def test_a_whole_trial_is_known_and_units_change_nothing() -> None:
    values = _curves(np.random.default_rng(1), 12)
    forecast = Forecast.of(_half_known(values, 4), EVALUATIONS, WINDOW)
    assert forecast.mean[0] == pytest.approx(values[0, -WINDOW:].mean(), abs=1e-6)
    assert forecast.interval(0, 0.9)[1] - forecast.mean[0] < 1e-3
    percent = Forecast.of(_half_known(100 * values + 7, 4), EVALUATIONS, WINDOW)
    np.testing.assert_allclose(percent.mean, 100 * forecast.mean + 7, rtol=1e-3)
    best, worst = int(forecast.mean.argmax()), int(forecast.mean[6:].argmin()) + 6
    assert forecast.overtakes(worst, best) < 0.5
    assert percent.overtakes(worst, best) == pytest.approx(forecast.overtakes(worst, best), abs=1e-3)


def test_more_trials_tell_more_of_the_scales() -> None:
    values = _curves(np.random.default_rng(3), 12)
    scales = Forecast.of(_half_known(values, 4), EVALUATIONS, WINDOW).scales
    found = [Forecast.of(_half_known(values[:count], 4), EVALUATIONS, WINDOW, scales).degrees for count in (3, 12)]
    assert found == [2, 10]


def test_seeds_of_a_configuration_are_forecast_together() -> None:
    values = _curves(np.random.default_rng(2), 9)
    values[7] = values[0] + 0.1
    alone, together = (
        Forecast.of([*_half_known(values[:8], 2)[:7], Curve(number, tuple(values[7, :2]))], EVALUATIONS, WINDOW)
        for number in (7, 0)
    )
    assert together.covariance[7, 7] < alone.covariance[7, 7]


def test_speed_and_ceiling_are_apart_and_an_endless_rise_has_no_ceiling() -> None:
    steps = np.arange(0.0, 101.0, 10.0)
    fast, slow = (saturation(steps, 0.3 + 0.2 * steps / (steps + time)) for time in (5.0, 20.0))
    assert fast is not None and slow is not None
    assert (fast.ceiling, slow.ceiling) == (pytest.approx(0.5, abs=2e-3), pytest.approx(0.5, abs=2e-3))
    assert (fast.half, slow.half) == (pytest.approx(500 / 110, rel=0.05), pytest.approx(2000 / 140, rel=0.05))
    line = saturation(steps, 0.3 + 0.001 * steps + 0.003 * np.cos(steps))
    assert line is not None and math.isinf(line.high)
    assert saturation(steps[:4], steps[:4]) is None
