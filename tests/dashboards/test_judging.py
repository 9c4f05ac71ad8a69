import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dashboards import judge
from dashboards.next_step import chosen_rule, next_step
from dashboards.statistics.verdict import Tested, verdict
from loptune.errors import ConfigError
from tests.dashboards.table import results_of
from tests.refusals import refused
from tests.tables import table

SCORES = {
    "grpo": [0.50, 0.53, 0.51, 0.52],
    "dapo": [0.61, 0.63, 0.60, 0.62],
    "gspo": [0.50, 0.52, 0.52, 0.51],
}
ASKED = {"by": ["loss"], "baseline": {"loss": "grpo"}, "score": "acc", "seed": "seed"}


def runs(scores=SCORES, first=0):
    rows = [
        (loss, first + seed, score)
        for loss, values in scores.items()
        for seed, score in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["loss", "seed", "acc"])


def tuned_runs():
    """Two losses at four learning rates; grpo is best at 2, dapo at 4."""
    noise = np.random.default_rng(0)
    rows = [
        (loss, lr, seed, 0.5 + gain - 0.02 * abs(np.log2(lr / best)) + noise.normal(0, 0.004))
        for loss, best, gain in [("grpo", 2, 0.0), ("dapo", 4, 0.05)]
        for lr in (1, 2, 4, 8)
        for seed in range(2)
    ]
    return pd.DataFrame(rows, columns=["loss", "lr", "seed", "acc"])


def test_the_import_takes_no_library():
    heavy = "{'pandas', 'numpy', 'scipy', 'plotly', 'mlflow', 'torch', 'ray', 'optuna', 'pydantic'}"
    code = f"import sys; from dashboards import judge; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_the_numbers_are_those_of_the_same_scores_in_a_sweep():
    judged = judge(runs(), **ASKED).verdict
    rows = {str(place): row for place, row in enumerate(SCORES.values())}
    expected = verdict(
        {name: dict(enumerate(row)) for name, row in rows.items()}, "0", adaptive=True
    )
    assert isinstance(judged, Tested) and isinstance(expected, Tested) and judged.best == "1"
    assert (judged.claim, judged.p_value, judged.interval) == (
        "candidate",
        expected.p_value,
        expected.interval,
    )


def test_a_table_that_a_sweep_exported_has_its_verdict():
    results = results_of()  # an arm with a failed run is compared apart
    results = replace(results, trials=results.trials[:-2])
    table = results.table.drop(columns=["arm", "reason"])
    spread = ["rule", "label", "algorithm", *results.searched]
    asked = {
        "by": ["configuration"],
        "baseline": {"configuration": 0},
        "score": "score",
        "seed": "seed",
    }
    judged = judge(table, fresh=True, ignore=spread, **asked).verdict
    assert isinstance(judged, Tested) and isinstance(results.verdict, Tested)
    assert (judged.p_value, judged.interval) == (results.verdict.p_value, results.verdict.interval)


def test_only_fresh_seeds_give_evidence(tmp_path):
    search = judge(runs(), **ASKED)
    fresh = judge(runs(), fresh=True, **ASKED)
    assert search.verdict.claim == "candidate" and "sweep" not in search.sentences[1]
    assert fresh.verdict.claim == "evidence"
    told = ("#1 loss=dapo beats", "#0 loss=grpo", "+0.100")
    assert all(part in fresh.sentences[0] for part in told)
    second = judge(
        runs(), fresh=runs({name: SCORES[name] for name in ("grpo", "dapo")}, first=4), **ASKED
    )
    assert second.verdict.claim == "evidence" and "#1 loss=dapo beats" in second.sentences[0]
    assert "sweep" not in second.sentences[1]
    page = second.write_report(tmp_path).read_text()
    assert "judged runs" in page and "sweep confirm" not in page and "sweep export" not in page


def test_small_differences_have_digits():
    small = judge(runs({name: [y / 1000 for y in row] for name, row in SCORES.items()}), **ASKED)
    assert "#1 loss=dapo: +1.0e-04 (90% interval +8.1e-05" in small.sentences[0]


def test_of_several_evaluations_the_last_count():
    steps = (
        runs().loc[np.repeat(range(12), 3)].assign(step=[10, 30, 20] * 12).reset_index(drop=True)
    )
    steps.loc[steps.step == 10, "acc"] = 0.0
    steps.loc[steps.step == 30, "acc"] += 0.02
    trial = judge(steps, window=2, **ASKED).results.trials[0]
    assert trial.score == pytest.approx(0.51) and trial.curves["acc"].steps == (10, 20, 30)


def test_a_blank_score_is_a_failed_run_and_a_missing_row_is_none():
    table = runs()
    blank = table.assign(acc=table.acc.where((table.loss != "dapo") | (table.seed != 3)))
    failed = judge(blank, **ASKED)
    assert failed.verdict.failed["1"] == 1
    assert [trial.state for trial in failed.results.trials].count("FAIL") == 1
    missing = judge(blank.dropna(), **ASKED)
    assert missing.verdict.failed.get("1", 0) == 0
    assert len(missing.results.trials) == 11


def test_what_was_tuned_is_compared_at_its_own_best():
    from dashboards.pictures.tournament import rule_table

    search = judge(tuned_runs(), tuned=["lr"], **ASKED)
    _, (base, other) = rule_table(search.results)
    assert (base[2], other[2]) == ("#1 loss=grpo lr=2", "#6 loss=dapo lr=4")
    assert "nothing is compared yet" in str(search) and search.verdict is None
    chosen = runs(first=2).query("loss != 'gspo'")
    fresh = chosen.assign(lr=chosen.loss.map({"grpo": 2, "dapo": 4}))
    confirmed = judge(tuned_runs(), tuned=["lr"], fresh=fresh, **ASKED)
    assert [result.rule for result in confirmed.results.tuned_rules.compared] == ["loss=dapo"]
    with refused("not-one-setting", ConfigError, names=("loss=grpo",)):
        judge(
            tuned_runs(),
            tuned=["lr"],
            fresh=tuned_runs().assign(seed=tuned_runs().seed + 9),
            **ASKED,
        )


def tuned_with_amc(loss_of_amc, seeds=range(9, 17)):
    """Two losses at eight learning rates on two seeds, and the best setting of each on fresh seeds;
    dapo gains 0.05 in acc and loses some of amc.
    """
    noise = np.random.default_rng(3)
    gains = {"grpo": 0.0, "dapo": 0.05}
    losses = {"grpo": 0.0, "dapo": loss_of_amc}
    search = [(loss, 2.0**power, seed) for loss in gains for power in range(8) for seed in (0, 1)]
    fresh = [(loss, 4.0, seed) for loss in gains for seed in seeds]
    tables = []
    for rows in (search, fresh):
        table = pd.DataFrame(rows, columns=["loss", "lr", "seed"])
        distance = abs(np.log2(table.lr / 4))
        table["acc"] = 0.5 + table.loss.map(gains) - 0.01 * distance
        table["amc"] = 0.4 - table.loss.map(losses)
        for metric in ("acc", "amc"):
            table[metric] += noise.normal(0, 0.002, len(table))
        tables.append(table)
    return tables


@pytest.mark.parametrize(
    ("loss", "outcome", "rule"),
    [(0.0, "holds", "loss=dapo"), (0.1, "fails", None), (0.02, "undecided", None)],
)
def test_a_rule_is_chosen_only_if_its_guards_hold(loss, outcome, rule):
    search, fresh = tuned_with_amc(loss)
    judged = judge(search, tuned=["lr"], fresh=fresh, guard="amc:0.02", **ASKED)
    (result,) = judged.results.tuned_rules.compared
    assert result.better and result.difference == pytest.approx(0.05, abs=0.005)
    (fields,) = judged.fields()["tuned"]
    assert fields["guards"][0]["outcome"] == outcome
    assert fields["guards"][0]["difference"] == pytest.approx(-loss, abs=0.005)
    verb = {"undecided": "is undecided"}.get(outcome, outcome)
    assert f"Guards of loss=dapo: amc {verb}" in str(judged)
    fresh_runs = replace(judged.results.fresh, planned=len(fresh))
    of_a_sweep = replace(judged.results, name="demo", fresh=fresh_runs)
    assert chosen_rule(of_a_sweep) == rule
    advice = "train with loss=dapo"
    if rule is None:
        advice = "keep loss=grpo: no rule that beats it is shown to satisfy its guards"
    assert next_step(of_a_sweep).text.startswith(f"Next: {advice}")


def test_a_failed_run_with_a_guard_value_is_left_out_of_the_tuning():
    search, fresh = tuned_with_amc(0.0)
    search.loc[(search.loss == "dapo") & (search.lr == 64), "acc"] = np.nan
    judged = judge(search, tuned=["lr"], fresh=fresh, guard="amc:0.02", **ASKED)
    (fields,) = judged.fields()["tuned"]
    assert fields["refusal"] == "few trials"  # seven, of eight that are needed


def test_problems_say_what_limits_the_verdict():
    generator = np.random.default_rng(0)
    table = runs().assign(trial=[f"run{place}" for place in range(12)])
    solved = {
        name: generator.random(40) < score
        for name, score in zip(table.trial, table.acc, strict=True)
    }
    rows = [
        (name, problem, int(right))
        for name, row in solved.items()
        for problem, right in enumerate(row)
    ]
    problems = pd.DataFrame(rows, columns=["trial", "problem", "correct"])
    table["acc"] = [float(solved[name].mean()) for name in table.trial]
    results = judge(table, problems=problems, **ASKED).results
    assert len(results.trials[0].solved or ()) == 40
    assert len(results.answers["1"]) == 4
    with pytest.raises(ConfigError, match=r"run0 .*0\.9.* 0\.4"):
        judge(
            table.assign(acc=table.acc.where(table.trial != "run0", 0.9)),
            problems=problems,
            **ASKED,
        )


WITH_RATE = runs().assign(lr=[1e-6] * 4 + [2e-6] * 4 + [1e-6] * 4)
TWICE = pd.concat([runs(), runs().iloc[:1].assign(acc=0.7)])


@pytest.mark.parametrize(
    ("table", "asked", "code", "names"),
    [
        *((runs(), *row) for row in table("judging_errors")),
        (runs().query("seed == 0"), {}, "one-seed", []),
        (runs().assign(acc="high"), {}, "no-number", ["'high'"]),
        (runs().assign(acc=1e308), {}, "no-number", ["'1e+308'"]),
        (runs().assign(acc=np.nan), {}, "no-score", []),
        (WITH_RATE, {}, "runs-differ", [" lr", "--by"]),
        (TWICE, {}, "repeated-run", ["loss=grpo", "seed 0"]),
        (runs().replace("dapo", "grpo "), {}, "repeated-run", ["loss=grpo", "seed 0"]),
        (runs({"grpo": [0.5] * 3, "dapo": [0.6] * 3}), {}, "identical-runs", []),
        (runs().assign(seed=None), {}, "no-seed", ["12 rows"]),
        (runs(), {"fresh": runs()}, "seeds-not-fresh", ["0, 1, 2, 3"]),
        (
            runs(),
            {"fresh": runs({"grpo": SCORES["grpo"], "ppo": SCORES["dapo"]}, 4)},
            "unknown-configuration",
            ["loss=ppo"],
        ),
        (runs(), {"problems": pd.DataFrame({"trial": [0]})}, "unknown-column", [" problem"]),
        (
            runs(),
            {"problems": pd.DataFrame({"trial": [0], "problem": 0, "correct": "yes"})},
            "no-number",
            ["--problems", "correct"],
        ),
        (runs().assign(step="last"), {}, "step-not-integer", ["step"]),
        (runs()[:0], {}, "no-rows", []),
        (runs().assign(step=np.inf), {}, "step-not-integer", ["step"]),
        (runs().assign(step=1.5), {}, "step-not-integer", ["step"]),
    ],
)
def test_what_cannot_be_judged_is_refused(table, asked, code, names):
    with refused(code, ConfigError, names=names):
        judge(table, **{**ASKED, **asked})


def test_columns_that_may_differ_are_ignored_varying_settings_are_not():
    lists = WITH_RATE.assign(texts=[["a"]] * 12)
    assert judge(lists, ignore=["lr"], **ASKED).verdict is not None
    mixed = runs().assign(**{"params.batch": [8, 16, 8, 8] * 3, "params.name": range(12)})
    # the same for all on a seed, and a name for each
    assert judge(mixed, **ASKED).verdict is not None
    mixed["params.batch"] = [8, 16, 8, 8] * 2 + [8, 8, 16, 8]
    with refused("runs-differ", ConfigError, names=("params.batch",)):
        judge(mixed, **ASKED)


def test_runs_that_end_at_different_steps_are_told():
    assert "different steps" not in str(judge(runs().assign(step=20), **ASKED))
    cut = judge(runs().assign(step=[20] * 11 + [10]), allow_unequal=True, **ASKED)
    assert "different steps, 10 to 20" in cut.sentences[-1]


def test_a_score_that_counts_an_evaluation_before_training_is_told() -> None:
    early = pd.concat([runs().assign(step=0), runs().assign(step=10)])
    warned = judge(early, **ASKED, window=2).sentences[-1]
    assert "before training" in warned
    assert "before training" not in judge(early, **ASKED, window=1).sentences[-1]


def test_two_seeds_and_one_candidate_are_told_to_run_more_seeds() -> None:
    two = runs({"grpo": [0.50, 0.53], "dapo": [0.52, 0.50]})
    two.loc[2, "acc"] = 0.54
    text = judge(two, **ASKED).sentences[1]
    assert "seeds" in text and "search another region" not in text


def test_without_seeds_no_sentence_speaks_of_a_shared_one() -> None:
    rows = [("grpo", 0.5), ("grpo", 0.52), ("grpo", 0.51), ("dapo", 0.6)]
    table = pd.DataFrame(rows, columns=["loss", "acc"])
    text = str(judge(table, by=["loss"], baseline={"loss": "grpo"}, score="acc"))
    assert "1 shared seed" not in text and "1 run of a configuration" in text
