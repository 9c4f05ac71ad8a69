"""No statistic depends on unit or zero of the scores: fractions give what percent give."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dashboards.statistics.group_sequential import Design
from dashboards.statistics.power import minimum_detectable_effect, seeds_for
from dashboards.statistics.rounds import interim_results, make_design
from dashboards.statistics.seed_noise import Noise
from dashboards.statistics.verdict import Tested, verdict

FACTORS = st.sampled_from([100.0, 0.01, 3.7, 1e-6, 1e4])
SHIFTS = st.sampled_from([0.0, 0.5, -3.0, 17.0])
# no round t: a tie would be decided by rounding
DESIGN = Design((2, 4), 2, 0.02, (4.037, 2.513), (3.071, 1.829))


@st.composite
def tables(draw):
    """Scores of 2 to 6 configurations on 2 to 5 seeds, as exact as 100 problems tell them, or
    continuous.
    """
    shape = draw(st.tuples(st.integers(2, 6), st.integers(2, 5)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = (
        0.5 + 0.05 * generator.standard_normal(shape) + 0.1 * generator.standard_normal(shape[1])
    )
    return np.round(scores, 2) if draw(st.booleans()) else scores


def named(scores):
    return {f"c{i}": dict(enumerate(row)) for i, row in enumerate(scores.tolist())}


def same(value, other):
    return value == pytest.approx(other, rel=1e-6, abs=1e-9, nan_ok=True)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(tables(), FACTORS, SHIFTS, st.booleans(), st.booleans())
@example(
    np.array([[0.5, 0.52], [0.55, 0.57], [0.51, 0.53], [0.52, 0.55]]), 100.0, 0.0, False, False
)
def test_a_verdict_is_the_same_in_every_unit(scores, factor, shift, fresh, fails):
    rows = [scores, factor * (scores + shift)]
    if fails and len(scores) > 2:
        for table in rows:
            table[-1, -1] = math.nan
    if fresh:
        unscaled, scaled = (
            verdict(named(table), "c0", earlier=named(unit * scores[:, ::-1]))
            for table, unit in zip(rows, (1, factor), strict=True)
        )
    else:
        unscaled, scaled = (verdict(named(table), "c0") for table in rows)
    assert type(unscaled) is type(scaled)
    for name in ("best", "winner", "comparisons", "seeds", "failed"):
        assert getattr(unscaled, name) == getattr(scaled, name), name
    assert same(unscaled.difference, scaled.difference / factor)
    if not isinstance(unscaled, Tested):
        return
    for name in ("claim", "dof", "by_problem", "confirmation_seeds"):
        assert getattr(unscaled, name) == getattr(scaled, name), name
    assert same(unscaled.p_value, scaled.p_value)
    for name in ("interval", "median", "shrunken", "sd", "detectable"):
        assert same(np.array(getattr(unscaled, name)), np.array(getattr(scaled, name)) / factor), (
            name
        )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables(), FACTORS, SHIFTS, st.sampled_from(["max", "min"]))
@example(  # the baseline's variance is nine times that of the others, up to rounding
    np.array([[0.43, 0.49, 0.43], [0.32, 0.5, 0.37], [0.36, 0.51, 0.36]]), 100.0, 0.0, "max"
)
def test_rounds_are_the_same_in_every_unit(scores, factor, shift, mode):
    rows = named(scores)
    scaled = named(factor * (scores + shift))
    design = replace(DESIGN, worthwhile=factor * DESIGN.worthwhile)
    pairs = zip(
        interim_results(DESIGN, rows, "c0", mode),
        interim_results(design, scaled, "c0", mode),
        strict=True,
    )
    for unscaled, other in pairs:
        assert unscaled.outcome == other.outcome
        assert (unscaled.interval is None) == (other.interval is None)
        numbers, scaled_numbers = (
            [each.gain, *(each.interval or (0, 0))] for each in (unscaled, other)
        )
        assert same(numbers, np.array(scaled_numbers) / factor)


@pytest.mark.parametrize("factor", [100.0, 0.01, 1e-6])
def test_what_is_promised_is_the_same_in_every_unit(factor):
    assert same(
        minimum_detectable_effect(0.03, 3, 8) * factor,
        minimum_detectable_effect(0.03 * factor, 3, 8),
    )
    for gain in (0.02, 0.05):
        assert seeds_for(gain, 0.03, 5) == seeds_for(gain * factor, 0.03 * factor, 5)
        unscaled, other = (
            make_design(Noise(0.03 * unit, 18), gain * unit, 1, 30) for unit in (1, factor)
        )
        assert (unscaled.analyses, unscaled.efficacy) == (other.analyses, other.efficacy)
