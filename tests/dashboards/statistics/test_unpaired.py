import math

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.arms import compare_arms
from dashboards.statistics.dunnett import critical_value

BASE = [0.50, 0.54, 0.52, 0.48, 0.51]
ARM = [0.60, 0.58, 0.63, 0.61]


def labeled(**arms):
    """Runs whose seeds are labels of their own."""
    return {
        name: {f"{name}{place}": y for place, y in enumerate(row)} for name, row in arms.items()
    }


def test_one_arm_has_welchs_test():
    (found,) = compare_arms(labeled(base=BASE, x=ARM), "base").differences
    parts = np.var(BASE, ddof=1) / 5, np.var(ARM, ddof=1) / 4
    welch = sum(parts) ** 2 / (parts[0] ** 2 / 4 + parts[1] ** 2 / 3)
    p = stats.ttest_ind(ARM, BASE, equal_var=False, alternative="greater").pvalue
    assert found.layout == "unpaired" and found.seeds == 4
    assert found.p == pytest.approx((welch + 2) / welch * p)  # level 0.05 f / (f + 2)
    half = stats.t.isf(0.05 * welch / (welch + 2), welch) * math.sqrt(sum(parts))
    assert found.interval == pytest.approx((found.gain - half, found.gain + half))


def test_several_arms_share_their_noise_by_hand():
    rows = {
        "base": [0.0, 2.0, 4.0, 2.0],  # variance 8/3
        "x": [5.0, 5.0, 7.0, 7.0],  # 4/3
        "y": [1.0, 3.0, 5.0, 3.0],  # 8/3
    }
    compared = compare_arms(labeled(**rows), "base")
    found = {each.configuration: each for each in compared.differences}
    # the pooled variance is 20/9; the baseline's own is larger
    error = math.sqrt(((4 / 3 + 20 / 9) / 2 + 8 / 3) / 4)
    half = critical_value(2, 9, probability=0.05 * 9 / 13) * error
    assert found["x"].interval == pytest.approx((4 - half, 4 + half))
    assert compared.noises["x"] == (pytest.approx(math.sqrt(20 / 9)), 9)
    # with unequal numbers of runs the correction is Bonferroni's
    more = {**rows, "y": [*rows["y"], 3.0]}
    pooled = (8 + 4 + 8) / 10
    error = math.sqrt(((4 / 3 + pooled) / 2 + 8 / 3) / 4)
    half = stats.t.isf(0.05 * 10 / 14 / 2, 10) * error
    (x, _) = compare_arms(labeled(**more), "base").differences
    assert x.interval == pytest.approx((4 - half, 4 + half))


def test_a_noisy_arm_leaves_the_others_alone():
    generator = np.random.default_rng(0)
    rows = {name: list(generator.normal(size=6)) for name in ("base", "x", "y", "z")}
    rows["noisy"] = list(100 * generator.normal(size=6))
    noisy = {each.configuration: each for each in compare_arms(labeled(**rows), "base").differences}
    width = noisy["x"].interval[1] - noisy["x"].interval[0]
    assert width < 6 and noisy["noisy"].interval[1] - noisy["noisy"].interval[0] > 100


@pytest.mark.parametrize(("arms", "runs", "spread"), [(3, 5, 1.0), (3, 5, 3.0), (1, 4, 1.0)])
def test_equal_means_give_few_claims(arms, runs, spread):
    generator = np.random.default_rng(1)
    claims = []
    for _ in range(600):
        rows = {str(arm): generator.standard_normal(runs) for arm in range(arms + 1)}
        rows["1"] = spread * rows["1"]
        compared = compare_arms(labeled(**rows), "0")
        claims.append(any(each.better for each in compared.differences))
    assert np.mean(claims) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 600)
