from dataclasses import replace

import pandas as pd
import pytest

from dashboards.pages.report import chapters_of
from dashboards.pictures.judged import baseline, changed_from_baseline, only_changed
from dashboards.pictures.parameters import score_against, scores_against
from dashboards.pictures.verdict import verdict
from dashboards.sweep import Sweep
from tests.dashboards.table import sweep_of

LR, TEMPERATURE, ALPHA = "optim.lr", "rollout.temperature", "algorithm.ar_alpha"


def searched_freely() -> Sweep:
    """Over lr, temperature and alpha: two that differ in alpha alone, and one better that differs in all."""
    settings = [(3e-4, 1.0, 0.0, 0.50), (3e-4, 1.0, 0.3, 0.51), (1e-5, 0.7, 0.3, 0.60), (1e-4, 0.7, 0.0, 0.40)]
    rows = [
        {
            **sweep_of().trials.iloc[0].to_dict(),
            **{"trial": f"c{number}s{seed}", "configuration": str(number), "seed": str(seed), "eta": 0.0},
            **{LR: lr, TEMPERATURE: temperature, ALPHA: alpha, "alpha": alpha, "score": score + 0.02 * seed},
            "variant": "grpo + AR" if alpha else "grpo",
            "start": pd.Timestamp(10 * number + seed, unit="s", tz="UTC"),
        }
        for number, (lr, temperature, alpha, score) in enumerate(settings)
        for seed in (0, 1)
    ]
    kinds = {LR: "loguniform", TEMPERATURE: "uniform", ALPHA: "choice"}
    searched = (LR, TEMPERATURE, ALPHA, "algorithm.lopti_eta")
    return replace(sweep_of(), trials=pd.DataFrame(rows), searched=searched, kinds=kinds, baseline="0")


def test_score_against_alpha_and_eta_say_where_the_best_was() -> None:
    _, alpha, eta = scores_against(sweep_of())
    assert "0.750, was at alpha 0.3 (#1 grpo α 0.3)" in alpha.sentence
    assert "was at eta 0 (#1 grpo α 0.3)" in eta.sentence
    dots = {trace.name: list(trace.x) for trace in alpha.figures[0].data}
    assert dots == {"grpo": [0, 0, 0.3, 0.3, 0, 0], "rpp": [0, 0, 0.3]}  # the failed trial has no score


def test_every_parameter_that_varies_has_its_picture_on_the_scale_it_was_searched_on() -> None:
    pictures = {picture.key: picture for several in chapters_of(searched_freely()).values() for picture in several}
    assert {LR, TEMPERATURE, "alpha"} <= set(pictures) and "eta" not in pictures
    axis = pictures[LR].figures[0].layout.xaxis
    assert axis.type == "log" and {1e-5, 3e-4} <= set(axis.tickvals)
    assert pictures[TEMPERATURE].figures[0].layout.xaxis.type is None
    dots = {trace.name: list(trace.x) for trace in pictures[LR].figures[0].data}
    assert dots == {"grpo": [3e-4, 3e-4, 1e-4, 1e-4], "grpo + AR": [3e-4, 3e-4, 1e-5, 1e-5]}


def test_a_parameter_is_credited_only_where_nothing_else_differs() -> None:
    sweep = searched_freely()
    changed = only_changed(sweep, [ALPHA])
    assert list(changed.label) == ["#1 grpo α 0.3 lr=0.0003 temperature=1"]
    assert changed.gain.iloc[0] == pytest.approx(0.01)
    assert score_against(sweep, ALPHA).sentence.endswith("against the baseline's alpha: 0.3 +0.010.")
    assert score_against(sweep, LR).sentence.endswith("temperature and alpha vary with it.")


def test_the_verdict_names_all_that_differs_from_the_baseline() -> None:
    sweep = searched_freely()
    best = "#2 grpo α 0.3 lr=1e-05 temperature=0.7"
    assert changed_from_baseline(sweep, best) == {LR: (1e-5, 3e-4), TEMPERATURE: (0.7, 1.0), ALPHA: (0.3, 0.0)}
    first, _, apart, *_ = verdict(sweep)
    assert first.endswith(f"Best candidate {best}: +0.100 (2 seeds).")
    assert apart == (
        "#2 differs from the baseline in lr 1e-05 (not 0.0003), temperature 0.7 (not 1), ar_alpha 0.3 (not 0): "
        "what it gains is that of all of these together."
    )


def test_the_baseline_is_the_listed_one_and_without_a_list_the_first_plain_one() -> None:
    sweep = searched_freely()
    assert baseline(replace(sweep, baseline="1")) == "#1 grpo α 0.3 lr=0.0003 temperature=1"
    assert baseline(replace(sweep, baseline=None)) == "#0 grpo lr=0.0003 temperature=1"
    failed = sweep.trials.assign(state=sweep.trials.state.where(sweep.trials.configuration != "0", "FAIL"))
    assert baseline(replace(sweep, trials=failed)) is None  # no other takes its place
    assert "the baseline #0 did not run to its end" in verdict(replace(sweep, trials=failed))[0]
    without_plain = sweep.trials[sweep.trials.alpha + sweep.trials.eta > 0]
    told = verdict(replace(sweep, trials=without_plain, baseline=None))[0]
    assert "no plain configuration (alpha 0, eta 0) ran to its end" in told
