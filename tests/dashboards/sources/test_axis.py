"""Runs of a table compared at the same amount of a column that grows."""

import numpy as np
import pandas as pd
import pytest

from dashboards import judge
from dashboards.sources.names import split_names
from dashboards.sources.wandb_tables import expand
from tests.refusals import refused

ASKED = {"by": ["loss"], "baseline": {"loss": "base"}, "score": "acc", "fresh": True}
RATES = {"base": 1.0, "long": 1.7}  # tokens per step
GAIN = 0.020  # of long, at equal tokens


def curves(seeds=8, last=100, gain=GAIN, noise=0.008):
    """Two arms with evaluations every ten steps; one uses 1.7 times the tokens, and its curve over
    tokens lies higher by ``gain`` everywhere.
    """
    random = np.random.default_rng(0)
    rows = []
    for loss, rate in RATES.items():
        for seed in range(seeds):
            shift = random.normal(0, noise) + (gain if loss == "long" else 0.0)
            for step in range(0, last + 1, 10):
                tokens = step * rate
                value = 0.3 + 0.4 * (1 - np.exp(-tokens / 60)) + shift
                rows.append((loss, seed, step, tokens, value + random.normal(0, noise / 2)))
    return pd.DataFrame(rows, columns=["loss", "seed", "step", "tokens", "acc"])


def test_at_equal_tokens_the_difference_is_the_true_one():
    judgement = judge(curves(), axis="tokens", **ASKED)
    judged = judgement.verdict
    assert judged.claim == "evidence"
    assert judged.difference == pytest.approx(GAIN, abs=0.005)
    assert judged.interval[0] < GAIN < judged.interval[1]
    assert {trial.step for trial in judgement.results.trials} == {100}
    assert vars(judgement.results.budget) == {"axis": "tokens", "at": 100, "window": 10}
    assert "at tokens 100" in " ".join(judgement.results.warnings)


def test_at_equal_steps_the_verdict_says_what_was_used_unequally():
    judgement = judge(curves(), **ASKED)
    assert judgement.verdict.difference > 2 * GAIN
    told = next(line for line in judgement.sentences if "1.7 times the tokens" in line)
    assert told.startswith("At equal steps") and "--axis tokens" in told
    assert judgement.fields()["costs"] == {"#1 loss=long": {"tokens": pytest.approx(1.7)}}
    # a cost beside the axis: the same tokens in fewer steps
    at_tokens = judge(curves(), axis="tokens", **ASKED)
    assert at_tokens.fields()["costs"] == {"#1 loss=long": {"step": pytest.approx(1 / 1.7)}}
    assert "--axis" not in " ".join(at_tokens.sentences)


def test_last_evaluations_at_other_tokens_are_called_unequal():
    judgement = judge(curves(), step="tokens", at_step=60, allow_unequal=True, **ASKED)
    told = " ".join(judgement.sentences)
    assert "Not at equal tokens" in told and "--axis tokens compares" in told


def test_equal_costs_are_not_mentioned():
    table = curves()
    table["tokens"] = table.step * 1.05
    assert judge(table, **ASKED).fields()["costs"] == {}


def test_a_step_that_only_some_runs_reach_leads_to_the_axis_and_not_in_circles():
    with refused("unequal-steps") as caught:
        judge(curves(), step="tokens", at_step=60, **ASKED)
    assert "--axis tokens --at 60" in caught.value.hint
    assert judge(curves(), axis="tokens", at=60, **ASKED).verdict.claim == "evidence"


def test_fractions_are_allowed():
    table = curves()
    table["hours"] = table.tokens / 77
    judged = judge(table, axis="hours", at=1.2, window=0.15, **ASKED)
    assert judged.verdict.difference == pytest.approx(GAIN, abs=0.006)
    assert vars(judged.results.budget) == {"axis": "hours", "at": 1.2, "window": 0.15}
    assert {trial.step for trial in judge(curves(), at_step=10.5, **ASKED).results.trials} == {10}


def test_a_table_without_steps_needs_only_the_axis():
    judged = judge(curves().drop(columns="step"), axis="tokens", **ASKED).verdict
    assert judged.difference == pytest.approx(GAIN, abs=0.005)


def test_a_budget_beyond_a_run_names_the_run_and_the_largest_common_one():
    with refused("short-runs", names=["loss=base seed 0 (tokens 100)"]) as caught:
        judge(curves(), axis="tokens", at=120, **ASKED)
    assert "--at 100," in caught.value.hint
    table = curves()
    table["tokens"] *= 10 / 3  # no number of six digits
    common = judge(table, axis="tokens", **ASKED).results.budget.at
    with refused("short-runs") as caught:
        judge(table, axis="tokens", at=400, **ASKED)
    named = float(caught.value.hint.split()[2].rstrip(","))
    assert judge(table, axis="tokens", at=named, **ASKED).results.budget.at <= common


def test_a_run_that_ended_before_its_own_kind_is_refused():
    table = curves()
    cut = (table.loss == "base") & (table.seed == 2) & (table.step > 40)
    with refused("short-runs", names=["loss=base seed 2 (tokens 40)"]) as caught:
        judge(table[~cut], axis="tokens", **ASKED)
    assert "--at 40" in caught.value.hint and "--failed" in caught.value.hint
    assert judge(table[~cut], axis="tokens", at=40, **ASKED).results.budget.at == 40
    # as many steps as the others with fewer tokens is no short run
    table.loc[(table.loss == "base") & (table.seed == 2), "tokens"] *= 0.8
    assert judge(table, axis="tokens", **ASKED).results.budget.at == 80


def test_a_window_before_the_first_evaluation_is_refused():
    late = curves().query("step >= 30")
    with refused("no-evaluation", names=["tokens 51"]) as caught:
        judge(late, axis="tokens", at=60, window=20, **ASKED)
    assert caught.value.hint.endswith("--window 9")
    assert judge(late, axis="tokens", at=60, window=9, **ASKED).results.budget.window == 9


def test_a_column_that_falls_is_no_axis():
    table = curves()
    table["per_step"] = 100 - table.step
    with refused("axis-falls", names=["from 100 to 90 at step 10"]):
        judge(table, axis="per_step", **ASKED)


def test_one_row_per_run_is_no_curve():
    with refused("no-curve"):
        judge(curves().query("step == 100"), axis="tokens", **ASKED)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"at": 50}, "no-axis"),
        ({"axis": "tokens", "at_step": 50}, "two-places"),
        ({"window": 2.5}, "not-a-count"),
        ({"window": 0}, "not-a-count"),
        ({"axis": "token"}, "unknown-column"),
        ({"axis": "acc"}, "named-twice"),
    ],
)
def test_options_that_contradict_each_other_are_refused(asked, code):
    with refused(code):
        judge(curves(), **{**ASKED, **asked})


def wandb_history():
    """The rows of ``run.history()`` of a script that logs training and evaluation apart."""
    rows = []
    for row in curves().itertuples():
        name = {"Name": f"{row.loss}-{row.seed}", "loss": row.loss, "seed": row.seed}
        at = {"_step": 2 * row.step, "_runtime": 3.5 * row.tokens, "_timestamp": 1.7e9 + row.step}
        rows.append({**name, **at, "tokens": row.tokens, "train/loss": 1.0})
        after = {"_step": 2 * row.step + 1, "_runtime": 3.5 * row.tokens + 1}
        rows.append({**name, **at, **after, "acc": row.acc})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("axis", ["tokens", "_runtime"])
def test_a_history_of_wandb_is_judged_as_exported(axis, tmp_path):
    wandb_history().to_csv(tmp_path / "history.csv", index=False)
    table = pd.read_csv(tmp_path / "history.csv")
    plain = judge(table, **ASKED)
    assert "1.7 times the tokens" in " ".join(plain.sentences)
    judged = judge(table, axis=axis, **ASKED)
    assert judged.verdict.difference == pytest.approx(GAIN, abs=0.006)
    assert "Left out" not in " ".join(judged.results.warnings)


def test_a_blank_amount_is_interpolated_and_never_far_beyond_the_last_one():
    table = curves(seeds=3)
    sparse = table.step % 20 == 0  # tokens are logged at every second evaluation
    exact = judge(table, axis="tokens", at=90, **ASKED).verdict.difference
    blank = table.assign(tokens=table.tokens.where(sparse))
    judged = judge(blank, axis="tokens", at=90, **ASKED)
    assert judged.verdict.difference == pytest.approx(exact)
    # the last tokens are at step 40: step 50 and 60 are within one distance, the rest is not known
    short = table.assign(tokens=table.tokens.where(sparse & (table.step <= 40)))
    judged = judge(short, axis="tokens", **ASKED)
    assert judged.results.budget.at == 60
    assert "24 evaluations" in " ".join(judged.results.warnings)


def test_evaluations_at_one_amount_of_a_coarse_axis_count_together():
    table = curves(seeds=3)
    table["hours"] = (table.step // 20).astype(float)
    judged = judge(table, axis="hours", window=0, at=2, **ASKED).results.trials[0]
    rows = table[(table.loss == "base") & (table.seed == 0) & table.step.isin([40, 50])]
    assert judged.score == pytest.approx(rows.acc.mean())


def test_every_task_has_its_own_budget():
    table = pd.concat([curves(seeds=3).assign(data="a"), curves(seeds=3, last=60).assign(data="b")])
    results = judge(table, axis="tokens", task=["data"], **ASKED).results
    assert {task: part.budget.at for task, part in results.by_task.items()} == {"a": 100, "b": 60}
    assert results.budget is None


def test_scores_that_end_at_different_amounts_are_compared_at_one():
    """``amc`` and ``length`` are logged between the evaluations of ``acc``, and end elsewhere."""
    table = curves(seeds=4)
    between = table.rename(columns={"acc": "amc"}).assign(step=table.step + 5, length=800.0)
    between["tokens"] += 5 * between.loss.map(RATES)
    between["length"] += between.seed + between.loss.map({"base": 0, "long": 30})
    both = pd.concat([table, between])
    asked = {**ASKED, "score": ["acc", "amc"], "guard": "length:40"}
    results = judge(both, axis="tokens", **asked).results
    parts = [*results.by_score.values(), results.guards[0].results]
    assert {part.budget.at for part in parts} == {100.0}
    expected = []
    for name, rows in both.groupby(["loss", "seed"]):
        grid = np.linspace(90, 100, 2001)
        means = []
        for score in ("acc", "amc"):
            scored = rows.dropna(subset=score).sort_values("tokens")
            means.append(np.interp(grid, scored.tokens, scored[score]).mean())
        expected.append((name[0], np.mean(means)))
    by_arm = pd.DataFrame(expected, columns=["loss", "score"]).groupby("loss").score.mean()
    found = {arm.name.split("=")[1]: arm.mean for arm in results.arm_table}
    assert found == pytest.approx(dict(by_arm), abs=1e-5)
    assert any("No run has acc and amc at the same step" in note for note in results.warnings)
    assert all(not trial.curves for trial in results.trials)


@pytest.mark.parametrize(
    ("change", "axis", "code", "names"),
    [
        ({"tokens": "per_step"}, "tokens", "axis-constant", ["add them up"]),
        ({"tokens": "text"}, "tokens", "no-number", ["'0.0M'", "without units"]),
        ({"tokens": "one arm"}, "tokens", "no-amount", ["4 runs of 8", "loss=base seed=0"]),
        ({"tokens": "restarted"}, "tokens", "axis-falls", ["restarted"]),
    ],
)
def test_an_axis_without_usable_amounts_is_refused(change, axis, code, names):
    table = curves(seeds=4)
    if change["tokens"] == "per_step":
        table["tokens"] = table.loss.map(RATES)
    elif change["tokens"] == "text":
        table["tokens"] = [f"{tokens}M" for tokens in table.tokens]
    elif change["tokens"] == "one arm":
        table.loc[table.loss == "base", "tokens"] = np.nan
    else:
        again = (table.loss == "base") & (table.seed == 2) & (table.step >= 50)
        table.loc[again, "tokens"] -= 50
    with refused(code, names=names):
        judge(table, axis=axis, **ASKED)


def test_a_counter_that_restarts_in_one_run_does_not_hide_the_costs_of_the_others():
    table = curves(seeds=4)
    again = (table.loss == "base") & (table.seed == 2) & (table.step >= 50)
    table.loc[again, "tokens"] -= 50
    text = str(judge(table, **ASKED))
    assert "used 1.7 times the tokens" in text


@pytest.mark.parametrize("score", ["equal", "other"])
def test_the_step_of_a_restarted_run_repeats(score):
    table = curves(seeds=4).rename(columns={"step": "_step"}).assign(_runtime=0.0)
    table["_runtime"] = 2.0 * table._step
    of_run = (table.loss == "base") & (table.seed == 2) & (table._step >= 60)
    again = table[of_run].assign(_runtime=table._runtime + 60)
    if score == "other":
        again["acc"] += 0.01
        with refused("repeated-run", names=["loss=base seed=2", "_step 60", "restarted"]):
            judge(pd.concat([table, again]), **ASKED)
        return
    restarted = judge(pd.concat([table, again]), **ASKED).verdict
    assert restarted.interval == judge(table, **ASKED).verdict.interval


def test_a_chart_over_tokens_is_compared_along_them():
    table = curves(seeds=4)
    table["run"] = table.loss + "-s" + table.seed.astype(str) + " - acc"
    chart = table.pivot(index="tokens", columns="run", values="acc").reset_index()
    rows = split_names(expand(chart), "{loss}-s{seed}")[0]
    found = judge(rows, axis="tokens", **ASKED)
    assert found.results.budget.at == 100
    expected = judge(table.drop(columns="run"), axis="tokens", **ASKED)
    assert found.verdict.interval == pytest.approx(expected.verdict.interval)


def test_a_table_with_fractions_of_an_epoch_names_the_axis():
    table = (
        curves(seeds=3).assign(epoch=lambda rows: rows.step / 37).drop(columns=["step", "tokens"])
    )
    with refused("not-repeats", names=["--axis epoch"]):
        judge(table, **ASKED)
    assert judge(table, axis="epoch", **ASKED).results.budget.at == pytest.approx(100 / 37)
