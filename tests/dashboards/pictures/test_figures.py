import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dashboards.labels import colours
from dashboards.pages.report import chapters_of, report_html, trials_html
from dashboards.pictures.figures import baseline_pairs, best_differences, paired_differences
from dashboards.results import Results
from tests.dashboards.table import results_of, shown, with_trials


def test_paired_differences_are_to_the_one_baseline_on_the_same_seed() -> None:
    sweep = results_of()
    pairs = baseline_pairs(sweep)
    found = {(row.label, row.seed): row.difference for row in pairs.itertuples()}
    assert found == pytest.approx(
        {
            ("#1 grpo α 0.3", "0"): 0.2,
            ("#1 grpo α 0.3", "1"): 0.2,
            ("#2 grpo η 0.5", "0"): 0.05,
            ("#2 grpo η 0.5", "1"): -0.05,
            ("#3 rpp", "0"): -0.1,
            ("#3 rpp", "1"): -0.1,
            ("#4 rpp α 0.3 η 0.5", "0"): -0.05,
            ("#4 rpp α 0.3 η 0.5", "1"): -0.2,  # failed: the worst score of all, as in the verdict
        }
    )
    sentence = shown(paired_differences(sweep)).sentence
    assert sentence.startswith("1 of 4 configurations beat the baseline #0 grpo on every shared seed")
    assert "+0.200 (#1 grpo α 0.3)" in sentence
    fresh = sweep.table[sweep.table.rule.isin(["grpo", "grpo + Lopti"])]  # of which the first two colours are
    (drawing,) = shown(best_differences(replace(sweep, fresh=with_trials(sweep, fresh)))).figures
    drawn = {trace.marker.color for trace in drawing.data}
    whole, alone = (colours(trials.rule)["grpo + Lopti"] for trials in (sweep.table, fresh))
    assert whole in drawn and alone not in drawn


def test_table_has_every_trial_the_failed_last() -> None:
    table = trials_html(results_of())
    assert table.count("<tr>") == 11
    body = table.split("<tbody>")[1]
    assert body.index("1-s1") < body.index("0-s0") < body.index("4-s1")
    assert "diverged &lt;b&gt;" in table and "0.8000" in table and "1.5" in table


def strange_sweeps() -> Iterator[Results]:
    """Sweeps that have just begun, with nothing but failures, and with a missing and a mixed parameter."""
    sweep = results_of()
    for kept in (0, 1, 2):
        trials = sweep.table.iloc[:kept]
        yield with_trials(sweep, trials)
    yield with_trials(sweep, sweep.table.assign(state="FAIL", score=math.nan))
    mixed = sweep.table.copy()
    mixed["algorithm.ar_alpha"] = [None, "None", 2.0, *mixed["algorithm.ar_alpha"][3:]]
    mixed.loc[0, "algorithm.lopti_eta"] = math.nan
    yield with_trials(sweep, mixed)


def test_every_picture_copes_with_strange_sweeps() -> None:
    for sweep in strange_sweeps():
        chapters = chapters_of(sweep)
        assert all(one.sentence.endswith(".") and one.decides for pictures in chapters.values() for one in pictures)
        assert "</html>" in report_html(sweep, chapters)
