import math
from dataclasses import replace

import pytest

from dashboards.labels import colours
from dashboards.pages.report import chapters_of, draw, report_html, trials_html
from dashboards.pictures.figures import (
    baseline_pairs,
    best_so_far,
    paired_differences,
    parameter_importance,
    variants_compared,
)
from dashboards.pictures.theme import MUTED
from tests.dashboards.table import sweep_of


def test_variants_compared_reports_leader_and_chances() -> None:
    picture = variants_compared(sweep_of())
    assert picture is not None
    sentence = picture.sentence
    assert sentence.startswith("grpo + AR has the best interquartile mean, 0.750")
    assert "100% over grpo + Lopti" in sentence


def test_paired_differences_are_to_the_one_baseline_on_the_same_seed() -> None:
    sweep = sweep_of()
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
        }
    )
    sentence = paired_differences(sweep).sentence
    assert sentence.startswith("1 of 4 configurations beat the baseline #0 grpo on every shared seed")
    assert "+0.200 (#1 grpo α 0.3)" in sentence


def test_best_so_far_names_the_trial() -> None:
    picture = best_so_far(sweep_of())
    assert "0.800, was reached by trial 1-s1 (#1 grpo α 0.3); 3 of 10 trials started before it" in picture.sentence
    assert list(picture.figures[0].data[0].y) == [0.5, 0.6, 0.7] + [0.8] * 6
    shades = colours(sweep_of().trials.variant)  # of the update rules, as in every other picture
    assert {trace.name: trace.marker.color for trace in picture.figures[0].data[1:]} == shades
    assert picture.legend == {**shades, "best so far": MUTED}


def test_importance_needs_enough_configurations() -> None:
    picture = parameter_importance(sweep_of())
    assert picture.figures == () and picture.sentence.startswith("4 configurations are complete")


def test_table_has_every_trial_the_failed_last() -> None:
    table = trials_html(sweep_of())
    assert table.count("<tr>") == 11
    body = table.split("<tbody>")[1]
    assert body.index("1-s1") < body.index("0-s0") < body.index("4-s1")
    assert "diverged &lt;b&gt;" in table and "0.8000" in table and "1.5" in table


@pytest.mark.parametrize("kept", [0, 1, 2, 10])
def test_every_picture_copes_with_a_sweep_that_has_just_begun(kept: int) -> None:
    sweep = sweep_of()
    trials = sweep.trials.iloc[:kept]
    begun = replace(sweep, trials=trials, histories=sweep.histories[sweep.histories.trial.isin(trials.trial)])
    for one in draw(begun):
        assert one.sentence.endswith(".")
    assert "</html>" in report_html(begun, chapters_of(begun))


def test_every_picture_copes_with_nothing_but_failures() -> None:
    sweep = sweep_of()
    failed = replace(sweep, trials=sweep.trials.assign(state="FAIL", score=math.nan))
    for one in draw(failed):
        assert one.sentence.endswith(".")


def test_every_picture_copes_with_a_missing_and_a_mixed_parameter() -> None:
    sweep = sweep_of()
    trials = sweep.trials.copy()
    trials["algorithm.ar_alpha"] = [None, "None", 2.0, *trials["algorithm.ar_alpha"][3:]]
    trials.loc[0, ["alpha", "eta"]] = math.nan
    for one in draw(replace(sweep, trials=trials)):
        assert one.sentence.endswith(".")
