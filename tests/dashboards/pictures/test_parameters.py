from dataclasses import replace

import pandas as pd

from dashboards import words
from dashboards.headline import verdict_sentences
from dashboards.pages.report import chapters_of
from dashboards.pictures.parameters import scores_against
from tests.dashboards.table import ALPHA, ETA, results_of, shown, with_trials

LR = "optim.lr"
TEMPERATURE = "rollout.temperature"


def searched_freely():
    """Over lr, temperature and alpha: two that differ in alpha alone, and one better that differs
    in all.
    """
    settings = [
        (3e-4, 1.0, 0.0, 0.50),
        (3e-4, 1.0, 0.3, 0.51),
        (1e-5, 0.7, 0.3, 0.60),
        (1e-4, 0.7, 0.0, 0.40),
    ]
    rows = [
        {
            **results_of().table.iloc[0].to_dict(),
            **{
                "trial": f"c{number}s{seed}",
                "configuration": str(number),
                "seed": str(seed),
                ETA: 0.0,
            },
            **{LR: lr, TEMPERATURE: temperature, ALPHA: alpha, "score": score + 0.02 * seed},
            "rule": "grpo + AR" if alpha else "grpo",
        }
        for number, (lr, temperature, alpha, score) in enumerate(settings)
        for seed in (0, 1)
    ]
    kinds = {LR: "loguniform", TEMPERATURE: "uniform", ALPHA: "choice"}
    searched = (LR, TEMPERATURE, ALPHA, ETA)
    return with_trials(
        results_of(), pd.DataFrame(rows), searched=searched, kinds=kinds, baseline="0"
    )


def test_score_against_alpha_and_eta_say_where_the_best_was():
    _, alpha, eta = map(shown, scores_against(results_of()))
    assert "0.750, was at ar_alpha 0.3 (#1 grpo α 0.3)" in alpha.sentence
    assert "was at lopti_eta 0 (#1 grpo α 0.3)" in eta.sentence
    dots = {trace.name: list(trace.x) for trace in alpha.figures[0].data}
    assert dots["grpo"] == [0, 0] and dots["grpo + AR"] == [0.3, 0.3]
    assert dots["rpp + AR + Lopti"] == [0.3]  # the failed trial has no score


def test_full_dots_are_what_the_verdict_compares():
    trials = searched_freely().table
    trials.loc[trials.trial == "c2s1", "state"] = "PRUNED"
    trials.loc[trials.trial == "c3s1", "state"] = "RUNNING"
    sweep = with_trials(searched_freely(), trials)
    rate, _, _ = map(shown, scores_against(sweep))
    dots = {symbol: [] for symbol in ("circle", "circle-open")}
    for trace in rate.figures[0].data:
        dots[trace.marker.symbol] += list(trace.y)
    assert sorted(dots["circle"]) == sorted(sweep.comparable.score)
    assert dots["circle-open"] == [0.60, 0.62]  # both seeds: one that ran on was the luckier one
    assert " 0.520, " in rate.sentence
    assert "Open dots" in rate.sentence


def test_every_varying_parameter_has_a_picture_on_its_scale():
    pictures = {
        picture.key: picture
        for several in chapters_of(searched_freely()).values()
        for picture in several
    }
    assert {LR, TEMPERATURE, ALPHA} <= set(pictures) and ETA not in pictures
    axis = pictures[LR].figures[0].layout.xaxis
    assert axis.type == "log" and {1e-5, 3e-4} <= set(axis.tickvals)
    assert pictures[TEMPERATURE].figures[0].layout.xaxis.type is None
    dots = {trace.name: list(trace.x) for trace in pictures[LR].figures[0].data}
    assert dots == {"grpo": [3e-4, 3e-4, 1e-4, 1e-4], "grpo + AR": [3e-4, 3e-4, 1e-5, 1e-5]}


def test_the_verdict_names_all_that_differs_from_the_baseline():
    sweep = searched_freely()
    best = "#2 grpo α 0.3 lr=1e-05 temperature=0.7"
    assert sweep.changed("2") == {LR: (1e-5, 3e-4), TEMPERATURE: (0.7, 1.0), ALPHA: (0.3, 0.0)}
    first, _, apart, *_ = verdict_sentences(sweep)
    assert f"{best}: +0.100 (2 seeds)" in first
    for setting in ("lr 1e-05", "0.0003", "temperature 0.7", "ar_alpha 0.3"):
        assert setting in apart
    assert "lopti_eta" not in apart


def test_no_other_configuration_takes_the_place_of_the_baseline():
    sweep = searched_freely()
    assert replace(sweep, baseline="1").compared_with == "1"
    assert replace(sweep, baseline=None).compared_with is None
    failed = sweep.table.assign(
        state=sweep.table.state.where(sweep.table.configuration != "0", "FAIL")
    )
    assert with_trials(sweep, failed).compared_with is None  # no other takes its place
    assert "baseline #0 " in verdict_sentences(with_trials(sweep, failed))[0]
    without_plain = sweep.table[sweep.table[ALPHA] + sweep.table[ETA] > 0]
    sentence = verdict_sentences(with_trials(sweep, without_plain, baseline=None))[0]
    assert words.NO_BASELINE in sentence


def axis(values, kind):
    """The axis of lr, searched in this way, with these values."""
    results = searched_freely()
    trials = results.table
    trials[LR] = [value for value in values for _ in (0, 1)]
    changed = with_trials(results, trials, kinds={**results.kinds, LR: kind})
    picture = next(each for each in scores_against(changed) if each.key == LR)
    return picture.figures[0].layout.xaxis


def test_values_that_span_a_decade_have_a_logarithmic_axis():
    listed = axis((1e-5, 2e-5, 4e-5, 1e-4), "choice")
    assert listed.type == "log" and "1e-05" in listed.ticktext
    assert axis((1e-4, 2e-4, 3e-4, 1e-3), "uniform").type == "log"
    narrow = axis((1e-5, 2e-5, 4e-5, 8e-5), "choice")
    assert narrow.type is None and narrow.exponentformat == "e"  # not 20µ
    assert axis((0.0, 2e-5, 4e-5, 1e-3), "choice").type is None
    assert axis((-1.0, 1.0, 5.0, 20.0), "uniform").type is None
