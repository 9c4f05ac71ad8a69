import math

import numpy as np
import pytest

from dashboards.statistics.verdict import verdict
from research.problem_pairing import judge, solve
from research.verdict_errors import claims


@pytest.mark.parametrize("fraction", [0.0, 0.5])
@pytest.mark.parametrize(("configurations", "seeds"), [(3, 3), (5, 3)])
def test_many_sweeps_at_once_are_decided_like_each_alone(configurations, seeds, fraction):
    generator = np.random.default_rng(2)
    answers = np.stack(
        [solve(generator, (configurations, seeds, 60), fraction, gain=1.5) for _ in range(40)]
    )
    shown, best = judge(answers, by_problem=True)
    for place, sweep in enumerate(answers):
        named = {f"c{number}": dict(enumerate(rows)) for number, rows in enumerate(sweep)}
        scores = {
            name: {seed: float(row.mean()) for seed, row in by_seed.items()}
            for name, by_seed in named.items()
        }
        alone = verdict(scores, "c0", answers=named)
        assert (claims(alone), alone.best) == (bool(shown[place]), f"c{best[place]}")
    assert 3 < shown.sum() < 37


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_false_positives_keep_the_level_and_gains_are_found(fraction):
    generator = np.random.default_rng(3)
    none, better = (
        np.stack([solve(generator, (4, 2, 60), fraction, gain) for _ in range(1500)])
        for gain in (0.0, 2.0)
    )
    assert judge(none, by_problem=True)[0].mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1500)
    before, now = (judge(better, by_problem)[0].mean() for by_problem in (False, True))
    assert now > before + 0.04
