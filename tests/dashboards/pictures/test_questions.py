"""Three questions about a verdict, with answers from the results."""

from dataclasses import replace

from dashboards.pages.report import trials_table
from dashboards.pictures.curves import learning_curves
from dashboards.pictures.questions import questions
from dashboards.trial import Curve
from tests.dashboards.pictures.test_tournament import confirmed
from tests.dashboards.table import results_of, shown


def test_a_search_is_told_that_its_seeds_chose_the_best():
    tuned, seeds, others = (answer for _, answer in questions(replace(results_of(), adaptive=True)))
    assert "4 others" in tuned and "2 seeds" in seeds and "sweep confirm" in seeds
    assert "ar_alpha 0.3 (baseline 0)" in others and "1 trial" in others


def test_listed_configurations_are_evidence():
    listed = replace(results_of(), adaptive=False, listed=True)
    tuned, seeds, _ = (answer for _, answer in questions(listed))
    assert "listed" in tuned and "are evidence" in seeds


def test_rules_are_said_to_differ_in_their_own_settings():
    _, seeds, others = (answer for _, answer in questions(confirmed(gain=9.0)))
    assert "2 fresh seeds" in seeds and "#1 plain" in others and "#2 AR η 0.5" in others


def test_nothing_is_asked_before_there_is_a_baseline():
    assert questions(replace(results_of(), trials=())) == []


def test_curves_that_coincide_are_named():
    results = results_of()
    curve = {results.objective.metric: Curve((1, 2), (0.1, 0.2))}
    first, second, *others = results.trials
    equal = (replace(first, curves=curve), replace(second, curves=curve))
    sentence = shown(learning_curves(replace(results, trials=(*equal, *others)))).sentence
    assert f"{first.name} and {second.name}" in sentence
    apart = tuple(
        replace(trial, curves={results.objective.metric: Curve((1, 2), (0.1, place / 10))})
        for place, trial in enumerate(results.trials)
    )
    assert "coincide" not in shown(learning_curves(replace(results, trials=apart))).sentence


def test_minutes_are_left_out_where_all_would_be_zero():
    results = results_of()
    short = tuple(replace(trial, hours=1e-5) for trial in results.trials)
    assert "minutes" in trials_table(results)[0]
    headings, rows = trials_table(replace(results, trials=short))
    assert "minutes" not in headings and {len(row) for row in rows} == {len(headings)}
