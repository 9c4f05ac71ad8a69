"""Which runs of a table count, and with what score."""

import numpy as np
import pandas as pd
import pytest

from dashboards import judge
from dashboards.sources.conditions import Condition
from tests.dashboards.test_judging import ASKED, runs
from tests.refusals import refused


def trials(table, **asked):
    return judge(table, **{**ASKED, **asked}).results.trials


def states(table, **asked):
    results = judge(table, **{**ASKED, **asked}).results
    return [trial.state for trial in results.trials], " ".join(results.warnings)


def evaluations(last=30, **ends):
    """Four evaluations of 12 runs; ``ends`` maps loss -> the last step of its seed 0."""
    table = pd.concat([runs().assign(step=step) for step in (0, 10, 20, 30)])
    for loss, end in ends.items():
        cut = (table.loss == loss) & (table.seed == 0) & (table.step > end)
        table = table[~cut]
    return table[table.step <= last]


@pytest.mark.parametrize("column", ["State", "state", "status", "_state"])
@pytest.mark.parametrize("word", ["crashed", "FAILED", "killed", "Error", "RunStatus.FAILED"])
def test_a_column_of_states_is_read_and_named(column, word):
    table = runs().assign(**{column: "finished"})
    table.loc[5, column] = word
    found, notes = states(table)
    assert found.count("FAIL") == 1 and found[5] == "FAIL"
    assert column in notes


def test_a_column_with_other_words_is_no_state():
    table = runs().assign(state=["ohio", "finished", "utah"] * 4)
    with refused("not-repeats"):
        trials(table)
    found, notes = states(table, ignore=["state"])
    assert "FAIL" not in found and "state" not in notes


def test_one_unknown_word_of_a_state_is_asked_about():
    ends = ["finished"] * 10 + ["failed (OOM)", "hung up"]
    with refused("unknown-state", names=["hung up"]):
        trials(runs().assign(status=ends))
    found, _ = states(runs().assign(status=ends), failed=[Condition("status", "=", "hung up")])
    assert found.count("FAIL") == 2


def test_a_run_that_has_not_ended_is_left_out_and_named():
    table = runs().assign(State=["finished"] * 11 + ["running"])
    found, notes = states(table)
    assert len(found) == 11 and "1 run " in notes and "--failed State=running" in notes
    found, _ = states(table, failed=[Condition("State", "=", "running")])
    assert found.count("FAIL") == 1 and len(found) == 12
    with refused("no-run-ended"):
        trials(runs().assign(State="running"))


def test_a_condition_names_failed_runs():
    table = runs().assign(steps_done=[100] * 10 + [3, 4])
    found, _ = states(table, failed=[Condition("steps_done", "<", "100")])
    assert found.count("FAIL") == 2


def test_runs_that_ended_early_are_named():
    table = evaluations(grpo=10, dapo=20)
    with refused("unequal-steps") as caught:
        trials(table)
    assert "loss=grpo seed 0 (step 10)" in caught.value.what
    assert "--at-step 10" in caught.value.hint and "--allow-unequal" in caught.value.hint
    assert {trial.step for trial in trials(table, at_step=10)} == {10}
    assert {trial.step for trial in trials(table, allow_unequal=True)} == {10, 20, 30}
    with refused("no-evaluation"):
        trials(table[table.step > 0], at_step=5)


def test_runs_that_log_at_other_steps_are_not_short():
    table = pd.concat([runs().assign(step=1000 - runs().seed), runs().assign(step=500)])
    assert {trial.step for trial in trials(table)} == {997, 998, 999, 1000}


def test_blank_last_evaluations_are_a_failure_and_no_shorter_run():
    table = evaluations().reset_index(drop=True)
    diverged = (table.loss == "dapo") & (table.seed == 1)
    table.loc[diverged & (table.step >= 20), "acc"] = np.nan
    failed = [trial for trial in trials(table) if trial.state == "FAIL"]
    assert [(trial.rule, trial.seed) for trial in failed] == [("loss=dapo", "1")]
    # rows of training between evaluations have no score either
    other = evaluations().reset_index(drop=True)
    training = other.assign(step=other.step + 5, acc=np.nan)
    assert all(trial.state == "COMPLETE" for trial in trials(pd.concat([other, training])))
    # evaluated at other steps, and logged at those of all others
    table = evaluations().reset_index(drop=True)
    mine = (table.loss == "dapo") & (table.seed == 1)
    late = table[mine].assign(step=table.step + 1)
    table.loc[mine, "acc"] = np.nan
    assert all(trial.state == "COMPLETE" for trial in trials(pd.concat([table, late])))


def test_infinite_last_evaluations_are_a_failure():
    table = evaluations().reset_index(drop=True)
    table.loc[(table.loss == "dapo") & (table.seed == 1) & (table.step == 20), "acc"] = np.inf
    assert [trial.state for trial in trials(table)].count("FAIL") == 1


@pytest.mark.parametrize("text", ["diverged", "-", "N/A", "OOM", " nan "])
def test_words_for_no_score_are_failed_runs(text):
    table = runs().assign(acc=[*map(str, runs().acc[:-1]), text])
    assert [trial.state for trial in trials(table)].count("FAIL") == 1


def test_percentages_beside_fractions_are_refused_with_both_ranges():
    table = runs()
    table.loc[table.loss == "dapo", "acc"] *= 100
    with refused("mixed-units") as caught:
        trials(table)
    assert "0.5 to 0.53" in caught.value.what and "60 to 63" in caught.value.what
    assert len(trials(table, same_unit=True)) == 12
    returns = runs()
    returns.loc[returns.loss == "dapo", "acc"] *= 10  # larger, but no percentages
    assert len(trials(returns)) == 12


def test_the_best_evaluation_is_named_as_such():
    table = evaluations().reset_index(drop=True)
    table.loc[table.step == 10, "acc"] += 0.1
    results = judge(table, take="best", **ASKED).results
    assert results.trials[0].score == pytest.approx(0.6)
    assert results.objective.metric == "best acc" and "biased" in " ".join(results.warnings)
    worst = judge(table, take="best", mode="min", **ASKED).results
    assert worst.trials[0].score == pytest.approx(0.5)


def test_the_column_of_steps_is_found_if_rows_repeat():
    table = evaluations().rename(columns={"step": "global_step"})
    results = judge(table, **ASKED).results
    assert results.trials[0].curves["acc"].steps == (0, 10, 20, 30)
    assert "global_step" in " ".join(results.warnings)


def test_a_counter_says_which_runs_died_early_in_a_table_with_one_row_per_run():
    table = runs().assign(_step=[100] * 11 + [3])
    with refused("unequal-steps", names=["'_step<95'"]):
        trials(table)
    found, _ = states(table, failed=[Condition("_step", "<", "95")])
    assert found.count("FAIL") == 1
    assert [trial.step for trial in trials(table, allow_unequal=True)][-1] == 3


def test_settings_are_named_by_their_keys():
    table = runs().rename(columns={"loss": "config.yaml:algo.loss", "seed": "params.seed"})
    for name in ("loss", "algo.loss", "config.yaml:algo.loss"):
        asked = {**ASKED, "by": [name], "baseline": {name: "grpo"}}
        results = judge(table, **asked).results
        assert results.trials[0].rule == "loss=grpo" and results.searched == ("algo.loss",)
    both = table.assign(**{"params.json:algo.loss": "x"})
    with refused("ambiguous-column"):
        judge(both, **{**ASKED, "by": ["loss"]})


def test_a_column_per_configuration_or_per_seed_becomes_rows():
    wide = runs().pivot(index="seed", columns="loss", values="acc").reset_index()
    assert len(trials(wide)) == 12
    by_seed = runs().pivot(index="loss", columns="seed", values="acc").reset_index()
    assert {trial.seed for trial in trials(by_seed)} == set("0123")


def test_lists_and_mappings_work_in_every_role():
    table = runs().assign(arch=[[64, 64]] * 4 + [[32, 32]] * 8, texts=[{"a": [1]}] * 12)
    table = table[table.loss != "gspo"]
    asked = {**ASKED, "by": ["arch"], "baseline": {"arch": "[64,64]"}, "ignore": ["loss"]}
    assert judge(table, **asked).verdict.difference == pytest.approx(0.1)


def test_the_table_of_runs_of_wandb_needs_nothing_ignored():
    table = runs().assign(State="finished", Name=runs().loss, Created="2026", Runtime=runs().loss)
    assert judge(table, **ASKED).verdict is not None


def test_a_long_cell_is_shortened_in_messages():
    table = runs().replace("grpo", "x" * 50_000)
    with refused("repeated-run") as caught:
        judge(pd.concat([table, table[:1]]), **{**ASKED, "baseline": {"loss": "x" * 50_000}})
    assert len(str(caught.value)) < 1000
    with refused("no-number") as caught:
        trials(runs().assign(acc="y" * 50_000))
    assert len(str(caught.value)) < 1000
    with refused("no-baseline") as caught:
        trials(runs().replace("dapo", "x" * 50_000), baseline={"loss": "ppo"})
    assert len(str(caught.value)) < 1000


def test_a_repeated_step_names_what_differs_there():
    again = evaluations()[:1].assign(attempt=2, acc=0.9)
    table = pd.concat([evaluations(), again])
    with refused("repeated-run") as caught:
        trials(table.fillna({"attempt": 1}))
    assert "step 0" in caught.value.what and caught.value.what.endswith("differ in attempt")


def test_names_of_configurations_stand_for_their_settings():
    table = runs().assign(lr=runs().loss.map({"grpo": 1, "dapo": 2, "gspo": 3}), same=runs().loss)
    with refused("runs-differ") as caught:
        trials(table)
    assert caught.value.hint.endswith("the others: --ignore lr")
    named = table.rename(columns={"loss": "run_name"})
    results = judge(
        named, **{**ASKED, "by": ["run_name"], "baseline": {"run_name": "grpo"}}
    ).results
    assert "lr" in " ".join(results.warnings) and "same" not in " ".join(results.warnings)


def test_a_step_names_a_row_of_its_run():
    table = pd.concat([runs().assign(steps=484, episode=episode) for episode in range(3)])
    results = judge(table, **ASKED).results
    assert results.trials[0].curves["acc"].steps == (0, 1, 2)


def test_a_column_that_repeats_the_configuration_is_no_difference():
    table = runs().assign(output_dir="out/" + runs().loss, model=runs().loss + ".pt")
    assert judge(table, **ASKED).verdict is not None
    with refused("runs-differ"):
        trials(table.assign(output_dir=table.output_dir.replace("out/dapo", "out/dapo-2")))


def test_columns_of_two_files_that_hold_the_same_are_as_good_as_one():
    table = runs().rename(columns={"loss": "config.loss"})
    table["params.json:loss"] = table["config.loss"]
    assert judge(table, **ASKED).results.trials[0].rule == "loss=grpo"


def test_logs_of_checkpoints_may_repeat_each_other():
    whole = evaluations()
    results = judge(pd.concat([whole, whole[whole.step <= 20]]), **ASKED).results
    assert results.trials[0].curves["acc"].steps == (0, 10, 20, 30)
    with refused("repeated-run"):
        trials(pd.concat([whole, whole.assign(acc=whole.acc + 0.1)]))


def test_a_number_needs_no_baseline():
    table = runs().rename(columns={"loss": "config.yaml:algo.loss"})
    asked = {**ASKED, "by": ["loss"], "baseline": {}, "against": 0.4}
    assert judge(table, **asked).verdict.difference == pytest.approx(0.215)
    with refused("no-baseline"):
        judge(table, **{**asked, "against": None})


def drawn_seeds(**columns):
    """20 runs of two losses, of which two pairs drew one seed, with a name each."""
    scores = np.random.default_rng(0).normal(0.5, 0.01, 20)
    table = pd.DataFrame(
        {
            "Name": [f"happy-{run}" for run in range(20)],
            "loss": ["grpo"] * 10 + ["dapo"] * 10,
            "seed": [*range(8), 3, 8, *range(100, 108), 103, 108],
            "acc": scores,
        }
    )
    return table.assign(**columns)


def test_runs_with_names_may_repeat_a_seed_that_was_drawn():
    judged = judge(drawn_seeds(), **ASKED)
    assert [arm.runs for arm in judged.arms] == [10, 10]
    assert judged.arms[1].layout == "unpaired"
    assert "2 runs" in " ".join(judged.results.warnings)
    expected = drawn_seeds().groupby("loss").acc.mean()
    assert judged.verdict.difference == pytest.approx(expected["dapo"] - expected["grpo"])


def test_repeated_seeds_may_hide_a_setting_or_a_run_started_twice():
    of_tasks = ["walker"] * 8 + ["hopper"] * 2
    for table in (
        drawn_seeds().drop(columns="Name"),
        drawn_seeds(**{"config.env": [0] * 8 + [1] * 2 + [0] * 10}),
        drawn_seeds(seed=[0, 1, 2, 3, 4] * 4),  # planned, and each started twice
        drawn_seeds(acc=[0.5, 0.6, 0.7, 0.8] * 2 + [0.8, 0.5] + [0.1 * y for y in range(10)]),
    ):
        with refused("repeated-run") as caught:
            trials(table)
        assert "--unpaired" in caught.value.hint
    with refused("not-repeats", names=["--task task"]):
        trials(drawn_seeds(task=of_tasks * 2))
    table = drawn_seeds().drop(columns="Name")
    assert len(trials(table, pairing="unpaired")) == 20
    with refused("repeated-run"):  # a row given twice
        trials(pd.concat([table, table.iloc[:1]]), pairing="unpaired")


def test_tables_put_together_may_repeat_numbers_of_rows():
    parts = pd.concat([rows for _, rows in runs().groupby("loss")])
    repeated = pd.concat([rows.reset_index(drop=True) for _, rows in parts.groupby("loss")])
    assert states(repeated) == states(runs().sort_values("loss", kind="stable"))
    named = repeated.assign(ID=[f"r{number}" for number in range(len(repeated))])
    named.loc[(named.loss == "dapo") & (named.seed == 1), "seed"] = 0
    assert len(trials(named, pairing="unpaired")) == len(named)


def test_a_file_of_one_run_asks_for_those_of_all(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.touch()
    table = pd.DataFrame({"step": [5], "eval_loss": [0.5]})
    with refused("unknown-column") as caught:
        judge(table, by=["lr"], baseline={"lr": 1}, score="eval_loss", source=str(path))
    assert "{lr}-s{seed}/trainer_state.json" in caught.value.hint


def test_metrics_of_lm_eval_are_found_with_their_filter():
    table = runs().rename(columns={"acc": "results.gsm8k.exact_match"})
    options = {"by": ["loss"], "baseline": {"loss": "grpo"}, "seed": "seed"}
    verdict = judge(table, score="results.gsm8k.exact_match,none", **options)
    assert verdict.verdict.difference > 0


def test_names_that_differ_only_in_spelling_are_told():
    table = runs()
    mixed = table.assign(loss=table.loss.where(table.seed < 2, table.loss.str.upper()))
    noted = " ".join(judge(mixed, **ASKED).results.warnings)
    assert "different configurations: grpo, GRPO" in noted
    assert "different configurations" not in " ".join(judge(table, **ASKED).results.warnings)
