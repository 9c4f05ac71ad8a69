"""Runs of a table compared at the same amount of a column that grows."""

import numpy as np
import pandas as pd
import pytest

from dashboards import judge
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
