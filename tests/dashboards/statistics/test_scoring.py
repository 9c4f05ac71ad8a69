"""How a run's records become its score."""

import math
from dataclasses import replace

import pytest

from dashboards.statistics.composites import Composite
from dashboards.statistics.scoring import Axis, Scoring
from loptune.errors import ConfigError

TOKENS = Axis("tokens", ("rollout/tokens",))


def records(*rows):
    return [{"step": step, **line} for step, line in rows]


def test_a_composite_is_taken_within_a_run_over_the_window_of_each_benchmark():
    lines = records(
        (1, {"a": 0.2, "b": 0.6}), (2, {"a": 0.4, "b": None}), (3, {"a": 0.6}), (3, {"b": 0.8})
    )
    scoring = Scoring(("a", "b"), window=2)
    values = scoring.values(lines)
    assert scoring.score(values) == pytest.approx((0.5 + 0.7) / 2)
    history = scoring.history(values)
    assert history[1] == pytest.approx(0.4) and history[3] == pytest.approx(0.7)
    assert math.isnan(history[2])
    weighted = replace(scoring, composite=Composite("weights", {"a": 3, "b": 1}))
    assert weighted.score(values) == pytest.approx(0.55)
    assert weighted.name == "weighted mean of 3 a, 1 b"


def test_amounts_of_a_step_add_up_to_an_axis_on_which_the_curve_is_interpolated():
    lines = records(
        (0, {"acc": 0.0}),
        (1, {"rollout/tokens": 60.0}),
        (2, {"rollout/tokens": 40.0}),
        (2, {"acc": 1.0}),
        (3, {"rollout/tokens": 100.0}),
        (3, {"acc": 1.0}),
    )
    scoring = Scoring(("acc",), axis=TOKENS, at=100.0)
    values = scoring.values(lines)
    curve = scoring.curve(values, "acc")
    assert curve.steps == (0.0, 100.0, 200.0)
    # the line from (0, 0) to (100, 1), averaged over 90 to 100
    assert scoring.score(values) == pytest.approx(0.95)
    assert replace(scoring, at=200.0).score(values) == pytest.approx(1.0)


def test_a_run_that_has_not_reached_the_amount_is_scored_where_it_is():
    scoring = Scoring(("acc",), axis=TOKENS, at=1000.0)
    lines = records((0, {"acc": 0.0}), (1, {"rollout/tokens": 100.0, "acc": 1.0}))
    assert scoring.score(scoring.values(lines)) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("at", "lines", "code"),
    [
        (300.0, [(0, {"acc": 0.1}), (1, {"rollout/tokens": 200.0, "acc": 0.2})], "short-run"),
        (100.0, [(1, {"rollout/tokens": 99.0, "acc": 0.2}),
                 (2, {"rollout/tokens": 9.0, "acc": 0.2})], "late-run"),
        (100.0, [(1, {"rollout/tokens": 200.0})], "metric-not-logged"),
    ],
)  # fmt: skip
def test_a_run_without_what_its_score_needs_is_refused(at, lines, code):
    scoring = Scoring(("acc",), axis=TOKENS, at=at)
    with pytest.raises(ConfigError) as error:
        scoring.check_complete(scoring.values(records(*lines)))
    assert error.value.code == code


@pytest.mark.parametrize("axis", [None, Axis("tokens")])
def test_benchmarks_without_a_common_step_are_refused(axis):
    scoring = Scoring(("a", "b", "c"), axis=axis, at=100.0)
    lines = records(
        (1, {"tokens": 50.0, "a": 0.2, "b": 0.3, "c": 0.1}),
        (2, {"tokens": 100.0, "a": 0.4, "b": 0.5, "c": 0.2}),
    )
    scoring.check_complete(scoring.values(lines))
    apart = records(
        (1, {"tokens": 50.0, "a": 0.2, "b": 0.3}),
        (2, {"tokens": 60.0, "b": 0.3, "c": 0.4}),
        (3, {"tokens": 100.0, "a": 0.4, "c": 0.5}),
        (4, {"tokens": 110.0, "b": 0.5}),
    )
    with pytest.raises(ConfigError) as error:
        scoring.check_complete(scoring.values(apart))
    assert (error.value.code, error.value.where) == ("no-common-step", "objective.metric")
    assert "a, b and c" in error.value.what


def test_an_axis_that_falls_is_refused():
    scoring = Scoring(("a", "b"), axis=Axis("tokens"), at=100.0)
    both = {"a": 0.2, "b": 0.4}
    amounts = [(1, 80.0), (2, 90.0), (3, 110.0)]
    lines = records(*((step, {"tokens": amount, **both}) for step, amount in amounts))
    scoring.check_complete(scoring.values(lines))
    lines += records((4, {"tokens": 95.0, **both}))
    with pytest.raises(ConfigError) as error:
        scoring.check_complete(scoring.values(lines))
    assert (error.value.code, error.value.where) == ("axis-falls", "objective.axis")
    assert "from 110 to 95 at step 4" in error.value.what


def test_hours_of_devices_are_seconds_times_devices():
    axis = Axis("gpu_hours", ("time/step", "time/evaluation"), unit=4 / 3600)
    lines = records((1, {"time/step": 900.0}), (1, {"time/evaluation": 900.0}))
    assert axis.amounts(lines) == {1: pytest.approx(2.0)}
