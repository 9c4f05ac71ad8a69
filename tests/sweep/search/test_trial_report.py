import math
from contextlib import nullcontext
from dataclasses import replace

import pytest

from dashboards.statistics.scoring import Axis, Scoring
from loptune.errors import DivergedError, StorageError
from sweep.search.trial_report import StorageFault, TrialReport

METRIC = "eval/accuracy"
SCORING = Scoring((METRIC,), window=3)


@pytest.mark.parametrize(
    ("values", "done", "diverges"),
    [
        ([0.1, math.nan], False, False),  # one evaluation may fail
        ([0.1, math.nan, 0.5], True, False),
        ([0.1, math.nan, 0.5, math.inf], False, False),
        ([math.nan, math.nan], False, True),
        ([0.1, math.inf, math.nan], False, True),
        ([0.1, math.nan], True, True),
        ([], True, True),
    ],
)
def test_an_objective_that_is_not_finite_twice_or_at_the_end_has_diverged(values, done, diverges):
    history = dict(enumerate(values, start=1))
    report = TrialReport(len(values), finished=done)
    with pytest.raises(DivergedError) if diverges else nullcontext():
        report.scored(SCORING, {METRIC: history})


def test_a_report_is_read_back_from_tunes_result():
    report = TrialReport(step=4, finished=True, metrics={"eval/accuracy": 0.5})
    values = {0: 0.9, 2: math.nan, 3: 0.25, 4: 0.5}
    scored = report.scored(replace(SCORING, window=2), {METRIC: values})
    assert (scored.score, scored.evaluation) == (0.375, 3)
    result = scored.to_result(ranks=[7])
    assert result["ranks"] == [7] and result["eval/accuracy"] == 0.5 and result["done"]
    assert TrialReport.of({**result, "pid": 1}) == scored
    assert TrialReport(4).scored(SCORING, {METRIC: {2: 0.5, 4: math.nan}}).score is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"a": {2: 0.5, 4: math.nan}, "b": {2: 0.5, 4: 0.5}}, "not finite"),
        ({"a": {2: 0.5}, "b": {4: 0.5}}, "no step has logged a and b"),
        ({"a": {0: 0.5}, "b": {0: 0.5}}, "too few evaluations"),  # no token has been used yet
    ],
)
def test_a_report_without_a_score_says_why(values, words):
    scoring = Scoring(("a", "b"), axis=Axis("tokens"), at=100)
    report = TrialReport(4).scored(scoring, {**values, "tokens": {2: 50, 4: 100}})
    assert report.score is None and words in report.no_score
    assert TrialReport.of(report.to_result()) == report


def test_a_storage_error_keeps_all_of_its_parts():
    error = StorageError("full", "runs", "free some space", "runs_dir", code="disk-full")
    again = StorageFault.of(error).error()
    assert vars(again) == vars(error)
