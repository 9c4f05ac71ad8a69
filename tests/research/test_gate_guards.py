"""The replay of guarded campaigns."""

import numpy as np

from research.gate_guards import Scenario, replay


def kept(**words):
    scenario = Scenario("", gain=4.0, gains_in=1.0, **words)
    return replay(scenario, proposals=6, rng=np.random.default_rng(0))


def test_harmful_gains_are_kept_only_without_a_guard():
    harmless, harmful = kept(), kept(harmful_in=1.0, harm=4.0)
    assert (harmless.good, harmless.planted) == (6, 6)
    assert (harmful.harmful, harmful.harmful_planted, harmful.good) == (0, 6, 0)
    assert 0 < harmful.harmful_level / 6 < 0.05
    unguarded = kept(harmful_in=1.0, harm=4.0, guarded=False)
    assert (unguarded.harmful, unguarded.harmful_planted) == (6, 6)
