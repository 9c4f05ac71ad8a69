"""What an A/A test reports."""

import numpy as np
import pytest

from sweep.gate.aa_test import NoiseReport


def report(scores, repeated=None):
    return NoiseReport(
        scores=dict(enumerate(scores)), repeated=repeated or {}, failed={}, minutes=None
    )


def test_the_interval_of_the_spread_covers_the_true_one_nine_times_in_ten():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        low, high = report(generator.standard_normal(5)).sd_interval
        covered += low < 1 < high
    assert covered / 2000 == pytest.approx(0.9, abs=0.03)


def test_equal_scores_of_all_seeds_are_seen():
    assert not report([0.5, 0.5, 0.5]).seed_matters
    assert report([0.5, 0.5, 0.6]).seed_matters


def test_repetition_is_known_only_of_seeds_that_ran_twice():
    assert report([0.5, 0.6]).repeats is None
    assert report([0.5, 0.6], {0: 0.5}).repeats is True
    assert report([0.5, 0.6], {0: 0.51}).repeats is False
