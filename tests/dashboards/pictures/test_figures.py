import math
from dataclasses import replace

import pytest

from dashboards.pages.report import PICTURES, draw, report_html, trials_html
from dashboards.pictures.figures import (
    alpha_eta_ranks,
    baseline_pairs,
    best_so_far,
    paired_differences,
    parameter_importance,
    score_against_alpha,
    score_against_eta,
    variants_compared,
)
from tests.dashboards.table import sweep_of


def test_score_against_alpha_and_eta_say_where_the_best_was() -> None:
    alpha, eta = score_against_alpha(sweep_of()), score_against_eta(sweep_of())
    assert "0.750, was at alpha 0.3 (grpo)" in alpha.sentence
    assert "was at eta 0 (grpo)" in eta.sentence
    dots = {trace.name: list(trace.x) for trace in alpha.figures[0].data}
    assert dots == {"grpo": [0, 0, 0.3, 0.3, 0, 0], "rpp": [0, 0, 0.3]}  # the failed trial has no score


def test_ranks_go_from_best_to_worst() -> None:
    picture = alpha_eta_ranks(sweep_of())
    grpo, rpp = picture.figures
    assert list(grpo.data[0].marker.color) == [2, 1, 2] and list(rpp.data[0].marker.color) == [4]
    assert "(1 of 4 configurations) lies at alpha 0.3 and eta 0" in picture.sentence


def test_ranks_of_points_too_near_to_each_other_share_a_text() -> None:
    sweep = sweep_of()
    trials = sweep.trials[sweep.trials.configuration != "4"].copy()
    # in the order of the configurations: rank 2 at (0, 0), 1 beside it, 2 at (0.3, 0.5), 4 far away
    for name, alpha, eta in (("0", 0.0, 0.0), ("1", 0.002, 0.0), ("2", 0.3, 0.5), ("3", 0.1, 0.2)):
        trials.loc[trials.configuration == name, ["alpha", "eta"]] = alpha, eta
    trials["algorithm"] = "grpo"
    (panel,) = alpha_eta_ranks(replace(sweep, trials=trials)).figures
    assert list(panel.data[0].text) == ["", "1, 2", "2", ""]


def test_variants_compared_reports_leader_and_chances() -> None:
    sentence = variants_compared(sweep_of()).sentence
    assert sentence.startswith("grpo + AR leads with an interquartile mean of 0.750")
    assert "100% over grpo + Lopti" in sentence


def test_paired_differences_use_the_same_seed_of_the_same_algorithm() -> None:
    sweep = sweep_of()
    pairs = baseline_pairs(sweep.complete())
    found = {(row.label, row.seed): row.difference for row in pairs.itertuples()}
    assert found == pytest.approx(
        {
            ("#1 grpo α 0.3", "0"): 0.2,
            ("#1 grpo α 0.3", "1"): 0.2,
            ("#2 grpo η 0.5", "0"): 0.05,
            ("#2 grpo η 0.5", "1"): -0.05,
            ("#4 rpp α 0.3 η 0.5", "0"): 0.05,
        }
    )
    sentence = paired_differences(sweep).sentence
    assert sentence.startswith("2 of 3 configurations beat the plain algorithm on every shared seed")
    assert "+0.200 (#1 grpo α 0.3)" in sentence


def test_best_so_far_names_the_trial() -> None:
    picture = best_so_far(sweep_of())
    assert "0.800, was reached by trial 4 of 10" in picture.sentence
    assert list(picture.figures[0].data[0].y) == [0.5, 0.6, 0.7] + [0.8] * 6


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
    for one in PICTURES:
        assert one(begun).sentence.endswith(".")
    assert "</html>" in report_html(begun, draw(begun))


def test_every_picture_copes_with_nothing_but_failures() -> None:
    sweep = sweep_of()
    failed = replace(sweep, trials=sweep.trials.assign(state="FAIL", score=math.nan))
    for one in PICTURES:
        assert one(failed).sentence.endswith(".")


def test_every_picture_copes_with_a_missing_and_a_mixed_parameter() -> None:
    sweep = sweep_of()
    trials = sweep.trials.copy()
    trials["algorithm.ar_alpha"] = [None, "None", 2.0, *trials["algorithm.ar_alpha"][3:]]
    trials.loc[0, ["alpha", "eta"]] = math.nan
    for one in PICTURES:
        assert one(replace(sweep, trials=trials)).sentence.endswith(".")
