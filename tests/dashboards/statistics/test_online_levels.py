"""Levels of a stream of proposals: LORD++ as published, and its bound on false keeps."""

import numpy as np
import pytest

from dashboards.statistics.online_levels import lord_level, spending


def test_levels_before_the_first_keep_spend_half_the_rate():
    levels = [lord_level([], proposal, 0.1) for proposal in range(1, 2001)]
    assert levels == sorted(levels, reverse=True)
    assert sum(levels) < 0.05
    assert sum(levels) > 0.0495


def test_the_first_keep_gives_back_half_the_rate_and_later_ones_the_whole():
    fractions = spending()
    first = lord_level([4], 5, 0.1)
    assert first == pytest.approx(0.05 * fractions[4] + 0.05 * fractions[0])
    second = lord_level([4, 6], 9, 0.1)
    expected = 0.05 * fractions[8] + 0.05 * fractions[4] + 0.1 * fractions[2]
    assert second == pytest.approx(expected)


def test_the_false_fraction_of_what_is_kept_stays_below_the_rate():
    generator = np.random.default_rng(0)
    fractions = []
    for _ in range(2000):
        kept: list[int] = []
        false = 0
        for proposal in range(1, 101):
            gain = 3.0 if generator.random() < 0.1 else 0.0
            p = _upper_tail(generator.standard_normal() + gain)
            if p <= lord_level(kept, proposal, 0.1):
                kept.append(proposal)
                false += gain == 0
        fractions.append(false / max(len(kept), 1))
    assert np.mean(fractions) < 0.1 + 3 * np.std(fractions) / 2000**0.5
    assert np.mean(fractions) > 0.02  # the levels are used, not merely tiny


def _upper_tail(z: float) -> float:
    from scipy.special import ndtr

    return float(ndtr(-z))


@pytest.mark.parametrize(("kept", "proposal"), [([3], 3), ([5], 4), ([], 10_001)])
def test_impossible_positions_are_refused(kept, proposal):
    with pytest.raises(ValueError):
        lord_level(kept, proposal, 0.1)
