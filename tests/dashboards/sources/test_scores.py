"""Several benchmarks as one score, and guards."""

import numpy as np
import pandas as pd
import pytest

from dashboards import judge
from dashboards.pictures.front import front_points, two_objectives
from dashboards.sources.scores import GuardSpec, guards_of, score_names
from dashboards.statistics.composites import Composite, interquartile_mean
from tests.paths import ROOT
from tests.refusals import refused

BENCHMARKS = ["math500", "minerva", "amc"]
ASKED = {"by": ["loss"], "baseline": {"loss": "grpo"}, "fresh": True}


def runs(seeds=8, **gains):
    """Two losses on shared seeds; ``gains`` maps a metric -> what dapo has more of it."""
    random = np.random.default_rng(1)
    rows = []
    for loss in ("grpo", "dapo"):
        for seed in range(seeds):
            row = {"loss": loss, "seed": seed, "length": 800 + random.normal(0, 4)}
            for place, name in enumerate(BENCHMARKS):
                row[name] = 0.3 + place / 10 + random.normal(0, 0.004)
            for name, gain in gains.items():
                row[name] += gain * (loss == "dapo")
            rows.append(row)
    return pd.DataFrame(rows)


def test_the_composite_is_a_mean_within_a_seed_and_benchmarks_are_no_runs():
    table = runs(math500=0.01, minerva=0.02, amc=0.03)
    judgement = judge(table, score="math500,minerva,amc", **ASKED)
    alone = judge(table.assign(avg=table[BENCHMARKS].mean(axis=1)), score="avg", **ASKED)
    assert judgement.verdict.difference == pytest.approx(alone.verdict.difference)
    assert judgement.verdict.interval == pytest.approx(alone.verdict.interval)
    assert judgement.verdict.runs == (8, 8)
    assert "mean of math500, minerva, amc" in judgement.sentences[0]
    by_score = judgement.fields()["scores"]
    for name in BENCHMARKS:
        one = judge(table, score=name, **ASKED).verdict
        assert by_score[name][1]["interval"] == pytest.approx(one.interval)


def test_the_average_of_a_table_of_benchmarks_is_one_command():
    table = pd.read_csv(ROOT / "examples/judge/benchmarks.csv")
    asked = {"by": ["method"], "baseline": {"method": "grpo"}, "fresh": True}
    scores = "olympiad_bench,minerva,math500,amc,aime24"
    judgement = judge(table, score=scores, guard="length:50", **asked)
    means = table.groupby("method")[scores.split(",")].mean().mean(axis=1)
    assert "method=grpo+ar" in judgement.sentences[0]
    assert judgement.verdict.difference == pytest.approx(means["grpo+ar"] - means["grpo"])


@pytest.mark.parametrize(
    ("guard", "methods", "outcome", "words"),
    [
        ("length:50", {"grpo", "grpo+ar", "grpo+lopti"}, "holds", "Confirmed:"),
        ("length:20", {"grpo", "grpo+ar", "grpo+lopti"}, "undecided", "Undecided:"),
        ("length:50", {"grpo", "grpo+lopti"}, "fails", "Better, but worse on length by 153:"),
    ],
)
def test_the_guards_that_the_page_judges(guard, methods, outcome, words):
    table = pd.read_csv(ROOT / "examples/judge/benchmarks.csv")
    table = table[table.method.isin(methods)]
    asked = {"by": ["method"], "baseline": {"method": "grpo"}, "fresh": True}
    scores = "olympiad_bench,minerva,math500,amc,aime24"
    judgement = judge(table, score=scores, guard=guard, **asked)
    [checked] = judgement.fields()["guards"]
    assert checked["outcome"] == outcome and judgement.sentences[0].startswith(words)


def test_a_guard_that_differs_equally_on_every_seed_says_why_it_is_undecided():
    table = pd.read_csv(ROOT / "examples/judge/benchmarks.csv")
    table["memory"] = table.method.map({"grpo": 10.0, "grpo+ar": 12.0, "grpo+lopti": 12.0})
    asked = {"by": ["method"], "baseline": {"method": "grpo"}, "fresh": True}
    ignored = ["olympiad_bench", "math500", "amc", "aime24", "length"]
    judgement = judge(table, score="minerva", guard="memory:5", ignore=ignored, **asked)
    text = str(judgement)
    assert "memory is undecided: +2.000 (exactly equal on every seed" in text


def test_the_kinds_of_composites():
    scores = {"a": 0.0, "b": 1.0, "c": 2.0, "d": 10.0}
    assert Composite("mean").of(scores) == pytest.approx(3.25)
    assert Composite("iqm").of(scores) == pytest.approx(1.5)
    assert Composite("weights", {"a": 0, "b": 3, "c": 1, "d": 0}).of(scores) == pytest.approx(1.25)
    # of three, half of each outer one counts: (0.25 a + b + 0.25 c) / 1.5
    assert interquartile_mean([0, 1, 4]) == pytest.approx((0.25 * 0 + 1 + 0.25 * 4) / 1.5)
    table = runs(amc=0.04)
    weighted = judge(table, score=BENCHMARKS, composite="math500=0,minerva=0,amc=2", **ASKED)
    assert weighted.verdict.difference == pytest.approx(
        judge(table, score="amc", **ASKED).verdict.difference
    )


def test_the_curve_of_a_composite_has_the_steps_of_all_benchmarks():
    table = pd.concat([runs(math500=0.05).assign(step=step) for step in (10, 20, 30, 40)])
    table.loc[table.step.isin([10, 30]), "amc"] = np.nan
    results = judge(table, score=BENCHMARKS, **ASKED).results
    [curve] = results.trials[0].curves.values()
    assert curve.steps == (20, 40)


def test_a_failed_benchmark_is_a_failed_run():
    table = runs(math500=0.05)
    table.loc[10, "amc"] = np.nan
    judged = judge(table, score=BENCHMARKS, **ASKED)
    assert judged.verdict.failed == {"1": 1}


def test_a_guard_that_holds_leaves_the_verdict():
    judgement = judge(runs(math500=0.02), score="math500", guard="amc:0.02,length:20", **ASKED)
    assert judgement.verdict.claim == "evidence"
    assert judgement.sentences[0].startswith("Confirmed")
    assert judgement.sentences[1] == "Next: train with it."
    found = judgement.fields()["guards"]
    assert [(each["metric"], each["outcome"]) for each in found] == [
        ("amc", "holds"),
        ("length", "holds"),
    ]
    assert [each["larger_is_better"] for each in found] == [True, False]


def test_a_guard_that_fails_is_named_and_nothing_is_recommended_to_train():
    judgement = judge(runs(math500=0.02, amc=-0.06), score="math500", guard="amc:0.02", **ASKED)
    assert judgement.sentences[0].startswith("Better, but worse on amc by 0.06")
    text = str(judgement)
    assert "train with it" not in text and "Confirmed" not in text
    assert judgement.fields()["guards"][0]["outcome"] == "fails"
    longer = judge(runs(math500=0.02, length=40), score="math500", guard="length", **ASKED)
    assert longer.sentences[0].startswith("Better, but worse on length by")


def test_an_undecided_guard_is_undecided():
    judgement = judge(runs(math500=0.02, amc=-0.02), score="math500", guard="amc:0.02", **ASKED)
    assert judgement.fields()["guards"][0]["outcome"] == "undecided"
    assert judgement.sentences[0].startswith("Undecided") and "amc" in judgement.sentences[0]
    assert "train with it" not in str(judgement) and "more seeds" in judgement.sentences[1]


def test_the_verdict_is_on_a_configuration_whose_guards_hold():
    table = runs(math500=0.02)
    other = runs(math500=0.05, amc=-0.06).query("loss == 'dapo'").assign(loss="wild")
    judgement = judge(pd.concat([table, other]), score="math500", guard="amc:0.02", **ASKED)
    assert "loss=dapo" in judgement.sentences[0] and judgement.sentences[0].startswith("Confirmed")


def test_guards_hold_in_a_second_table_too():
    fresh = runs(math500=0.02, amc=-0.06).assign(seed=lambda table: table.seed + 8)
    asked = {**ASKED, "fresh": fresh}
    judgement = judge(runs(math500=0.02), score=["math500", "minerva"], guard="amc:0.02", **asked)
    assert judgement.sentences[0].startswith("Better, but worse on amc by 0.06")


def test_the_report_has_a_picture_for_every_score(tmp_path):
    judgement = judge(runs(math500=0.02), score=BENCHMARKS, guard="length:20", **ASKED)
    page = judgement.write_report(tmp_path).read_text()
    assert "Difference by score" in page
    for place in range(4):
        assert f"benchmarks-{place}" in page


def test_names_may_contain_commas():
    table = pd.DataFrame({"acc,none": [1], "f1,none": [2], "acc_norm": [3]})
    assert score_names("acc,none", table) == ["acc,none"]
    assert score_names("acc,none,f1,none,acc_norm", table) == ["acc,none", "f1,none", "acc_norm"]
    assert score_names("acc_norm,none", table) == ["acc_norm,none"]  # none is its filter


def test_guards_are_read():
    assert guards_of("length,amc:0.02,eval/f1:0.1:min") == [
        GuardSpec("length", 0.0, "min"),
        GuardSpec("amc", 0.02, "max"),
        GuardSpec("eval/f1", 0.1, "min"),
    ]
    with refused("negative-margin", names=["amc"]):
        guards_of("amc:-1")
    with refused("named-twice"):
        guards_of("amc:0.1,amc:0.2")


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"composite": "median"}, "unknown-composite"),
        ({"composite": "math500=1"}, "other-weights"),
        ({"composite": "math500=1,minerva=1,amd=1"}, "other-weights"),
        ({"composite": "math500=0,minerva=0,amc=0"}, "no-weight"),
        ({"problems": pd.DataFrame({"trial": [0]})}, "several-scores"),
        ({"guard": "length", "against": 0.3}, "guards-not-possible"),
        ({"guard": "length", "against": 0.0}, "guards-not-possible"),
        ({"guard": "lenght"}, "unknown-column"),
        ({"score": "math500,amd"}, "unknown-column"),
    ],
)
def test_what_cannot_be_combined_is_refused(asked, code):
    with refused(code):
        judge(runs(), **{"score": "math500,minerva,amc", **ASKED, **asked})


@pytest.mark.parametrize(
    ("second", "front"),
    [
        ("length", {"grpo", "dapo"}),  # dapo scores higher with longer answers
        ("length:max", {"dapo"}),
    ],
)
def test_a_second_objective_is_drawn_and_changes_no_verdict(second, front):
    table = runs(math500=0.02, length=40)
    alone = judge(table, score="math500", ignore=["length"], **ASKED)
    judgement = judge(table, score="math500", second=second, **ASKED)
    assert judgement.sentences == alone.sentences
    points = front_points(judgement.results)
    assert {point.label.partition("=")[2] for point in points if point.on_front} == front
    lengths = table.groupby("loss").length.mean()
    for point in points:
        assert point.second.mean == pytest.approx(lengths[point.label.partition("=")[2]])
    assert two_objectives(judgement.results) is not None
    assert two_objectives(alone.results) is None


def test_a_cost_as_the_second_objective_is_the_amount_that_a_run_has_used():
    rows = []
    for loss, tokens in (("grpo", 100), ("dapo", 150)):
        for seed in range(4):
            for step in range(1, 5):
                score = 0.5 + 0.1 * (loss == "dapo") + 0.01 * seed
                rows.append((loss, seed, step, score, step * tokens))
    table = pd.DataFrame(rows, columns=["loss", "seed", "step", "acc", "tokens"])
    judgement = judge(table, score="acc", second="tokens", **ASKED)
    used = {trial.parameters["loss"]: trial.second for trial in judgement.results.trials}
    assert used == {"grpo": 400, "dapo": 600}  # at the end, not the mean of the last evaluations
    assert len([point for point in front_points(judgement.results) if point.on_front]) == 2


def test_a_second_objective_on_fresh_seeds_is_drawn_there():
    searched, fresh = runs(seeds=4, math500=0.02), runs(seeds=8, math500=0.02)
    asked = {"by": ["loss"], "baseline": {"loss": "grpo"}, "fresh": fresh[fresh.seed >= 4]}
    results = judge(searched, score="math500", second="length", **asked).results
    assert results.fresh is not None
    assert [point.seeds for point in front_points(results.fresh)] == [4, 4]


def test_the_score_is_no_second_objective():
    with refused("second-is-score", names=("math500", "--second")):
        judge(runs(), score="math500", second="math500", **ASKED)
