import math

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.random_effects import random_effects

# Thirteen trials of the BCG vaccine: log relative risk and its variance [Colditz et al., JAMA 271, 1994].
BCG = [
    (-0.8893, 0.3256), (-1.5854, 0.1946), (-1.3481, 0.4154), (-1.4416, 0.0200), (-0.2175, 0.0512), (-0.7861, 0.0069),
    (-1.6209, 0.2230), (0.0120, 0.0040), (-0.4694, 0.0564), (-1.3713, 0.0730), (-0.3394, 0.0124), (0.4459, 0.5325),
    (-0.0173, 0.0714),
]  # fmt: skip


def test_a_known_meta_analysis_is_repeated() -> None:
    found = random_effects([y for y, _ in BCG], [math.sqrt(v) for _, v in BCG])
    assert found is not None
    assert found.between**2 == pytest.approx(0.3181, abs=1e-4)  # metafor's rma(method="PM"), as its "EB"
    assert found.mean.value == pytest.approx(-0.7150, abs=1e-4)
    weights = 1 / (np.array([v for _, v in BCG]) + 0.3181)
    half = stats.t.ppf(0.95, 12) / math.sqrt(weights.sum())  # Q is k - 1 here, and the factor of the variance 1
    assert found.mean.high - found.mean.low == pytest.approx(2 * half, rel=1e-3)
    # Mean and tau as if known give -1.79 to 0.36 with k - 2 degrees of freedom: nearly the same with many settings.
    assert found.prediction == pytest.approx((-1.79, 0.36), abs=0.06)


def test_equal_settings_have_no_spread_and_few_settings_no_summary() -> None:
    found = random_effects([0.1, 0.1, 0.1, 0.1], [0.2, 0.2, 0.2, 0.2])
    assert found is not None and found.between == 0 and found.mean.value == pytest.approx(0.1)
    assert found.mean.high - 0.1 == pytest.approx(stats.t.ppf(0.95, 3) * 0.1)  # four settings halve the error of 0.2
    assert found.prediction[0] < found.mean.low and found.mean.high < found.prediction[1]
    assert random_effects([0.1, 0.2], [0.1, 0.1]) is None
