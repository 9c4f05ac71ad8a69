import pytest
from scipy import stats

from dashboards.statistics.front import estimate, front

# score, where more is better, and hours, where less is
POINTS = {
    "best": (0.9, 8.0),
    "dearer": (0.9, 9.0),  # as good as best, for more hours
    "middle": (0.8, 4.0),
    "twin": (0.8, 4.0),
    "between": (0.7, 5.0),  # middle is better in both
    "cheap": (0.5, 1.0),
}


def test_the_front_has_what_nothing_is_better_than_in_both():
    assert front(POINTS, (1, -1)) == ["best", "middle", "twin", "cheap"]
    mirrored = {name: (-score, -hours) for name, (score, hours) in POINTS.items()}
    assert front(mirrored, (-1, 1)) == ["best", "middle", "twin", "cheap"]
    assert front(POINTS, (1, 1)) == ["dearer"]
    assert front({}, (1, -1)) == []


def test_the_interval_of_a_mean_is_students():
    found = estimate([1.0, 2.0, 4.0, 5.0], 0.9)
    low, high = stats.t.interval(0.9, 3, loc=3.0, scale=stats.sem([1, 2, 4, 5]))
    assert found.mean == 3.0 and found.interval == pytest.approx((low, high))
    assert estimate([2.5], 0.9).interval is None
