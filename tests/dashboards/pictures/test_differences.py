import math
from dataclasses import replace

import pytest

from dashboards.labels import colors
from dashboards.pages.report import chapters_of, report_html, trials_table
from dashboards.pictures.differences import baseline_pairs, differences
from tests.dashboards.table import results_of, shown, with_trials


def test_paired_differences_are_to_the_one_baseline_on_the_same_seed():
    sweep = results_of()
    pairs = baseline_pairs(sweep)
    by_seed = {(row.label, row.seed): row.difference for row in pairs.itertuples()}
    assert by_seed == pytest.approx(
        {
            ("#1 grpo α 0.3", "0"): 0.2,
            ("#1 grpo α 0.3", "1"): 0.2,
            ("#2 grpo η 0.5", "0"): 0.05,
            ("#2 grpo η 0.5", "1"): -0.05,
            ("#3 rpp", "0"): -0.1,
            ("#3 rpp", "1"): -0.1,
            ("#4 rpp α 0.3 η 0.5", "0"): -0.05,
        }
    )
    sentence = shown(differences(sweep)).sentence
    assert "#0 grpo" in sentence and "4 undecided" in sentence
    # of which the first two colors are
    fresh = sweep.table[sweep.table.rule.isin(["grpo", "grpo + Lopti"])]
    (drawing,) = shown(differences(replace(sweep, fresh=with_trials(sweep, fresh)))).figures
    drawn = {trace.marker.color for trace in drawing.data}
    whole, alone = (colors(trials.rule)["grpo + Lopti"] for trials in (sweep.table, fresh))
    assert whole in drawn and alone not in drawn


def test_table_has_every_trial_the_failed_last():
    _, rows = trials_table(results_of())
    names = [row[0][0] for row in rows]
    assert len(names) == 10 and names[0] == "1-s1" and names[-1] == "4-s1"
    assert rows[-1][-1] == ("diverged <b>", "diverged <b>", "reason")
    assert rows[0][4] == ("0.8000", "0.8", "number") and rows[0][-2][0] == "1.50"


def strange_sweeps():
    """Sweeps that have just begun, with nothing but failures, and with a missing and a mixed
    parameter.
    """
    sweep = results_of()
    for kept in (0, 1, 2):
        trials = sweep.table.iloc[:kept]
        yield with_trials(sweep, trials)
    yield with_trials(sweep, sweep.table.assign(state="FAIL", score=math.nan))
    mixed = sweep.table.copy()
    mixed["algorithm.ar_alpha"] = [None, "None", 2.0, *mixed["algorithm.ar_alpha"][3:]]
    mixed.loc[0, "algorithm.lopti_eta"] = math.nan
    yield with_trials(sweep, mixed)


def test_every_picture_copes_with_strange_sweeps():
    for sweep in strange_sweeps():
        chapters = chapters_of(sweep)
        assert all(
            picture.sentence.endswith(".") and picture.decides
            for pictures in chapters.values()
            for picture in pictures
        )
        assert "</html>" in report_html(sweep, chapters)


def test_the_table_has_no_empty_column_and_one_seed_no_intervals():
    results = results_of()
    picture = shown(differences(replace(results, fresh=None)))
    headings, rows = picture.table
    assert "missing" not in headings and {"SD", "90% interval"} <= set(headings)
    assert all(len(row) == len(headings) for row in rows)
    assert "90% intervals" in picture.title
    first = results.table[results.table.seed == "0"]
    picture = shown(differences(with_trials(results, first)))
    assert picture.table[0] == ["configuration", "runs", "mean", "difference", "result"]
    assert "interval" not in picture.title and "too few for intervals" in picture.sentence
