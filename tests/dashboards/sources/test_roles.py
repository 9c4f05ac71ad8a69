"""Rows that are not repeats of a run never count as runs."""

import itertools

import numpy as np
import pandas as pd
import pytest

from dashboards import judge
from tests.dashboards.test_judging import ASKED, runs
from tests.refusals import refused

STEPS = (
    "timestep", "timesteps", "checkpoint", "tokens", "n_tokens", "samples", "iteration",
    "num_updates", "epoch", "ckpt", "round", "env_interacts", "trainer_step", "gradient_updates",
    "batches", "examples", "whatever",
)  # fmt: skip


def judged(table, **asked):
    return judge(table, **{**ASKED, "seed": "", **asked})


def curves(step, *, values=range(1000, 21000, 1000)):
    """Two runs of two arms with an evaluation at each step."""
    rows = []
    for arm, level in (("grpo", 0.5), ("dapo", 0.6)):
        for run in range(2):
            for place, value in enumerate(values):
                score = level + 0.01 * run + 0.001 * ((7 * place + 3 * run) % 5)
                rows.append({"loss": arm, "run": f"{arm}-{run}", step: value, "acc": score})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "name",
    [
        "Seed",
        "SEED",
        "train_seed",
        "random_state",
        "rng_seed",
        "randomSeed",
        "config.seed",
        "seeds",
    ],
)
def test_a_seed_is_found_under_its_usual_names(name):
    verdict = judged(runs().rename(columns={"seed": name}))
    assert verdict.arms[1].layout == "paired"
    assert any(name in note for note in verdict.results.warnings)


def test_a_seed_of_the_data_that_never_varies_is_none():
    verdict = judged(runs().rename(columns={"seed": "train_seed"}).assign(data_seed=42))
    assert verdict.arms[1].layout == "paired"
    varying = runs().assign(data_seed=[0, 0, 1, 1] * 3).rename(columns={"seed": "train_seed"})
    with refused("ambiguous-seed", names=["data_seed", "train_seed"]):
        judged(varying)


def test_a_seed_that_is_blank_in_every_row_is_none():
    verdict = judged(runs().assign(seed=None), score="acc")
    assert verdict.arms[1].layout == "unpaired" and verdict.arms[1].runs == 4


@pytest.mark.parametrize("name", STEPS)
def test_evaluations_are_no_runs_whatever_the_step_is_called(name):
    verdict = judged(curves(name))
    assert [arm.runs for arm in verdict.arms] == [2, 2]
    assert verdict.results.trials[0].curves["acc"].steps[-1] == 20000


def test_a_few_unknown_values_are_asked_about():
    with refused("runs-not-told-apart", names=["--step", "--task"]):
        judged(curves("whatever", values=range(3)))


@pytest.mark.parametrize(
    "values", [["cola", "sst2"], ["f1", "bleu"], [0.1, 0.2], [True, False]], ids=str
)
def test_a_column_that_divides_a_configuration_is_no_repeat(values):
    table = pd.concat([runs().assign(kind=value, acc=runs().acc * 0.9) for value in values])
    for asked in (table, table.drop(columns="seed"), table.assign(seed=range(len(table)))):
        with refused("not-repeats", names=["--where", "--task kind", "--ignore kind"]):
            judged(asked)


def test_problem_instances_are_tasks_and_numbers_of_a_try_are_repeats():
    """Tables of optimizers call a data set or a test function an instance."""
    rows = []
    for arm, name, execution in itertools.product(("svm", "knn"), ("iris", "wine"), range(5)):
        acc = 0.8 + 0.05 * (arm == "svm") + 0.001 * execution + 0.1 * (name == "wine")
        rows.append({"loss": arm, "Instance": name, "ExecutionId": execution, "acc": acc})
    table = pd.DataFrame(rows)
    options = {"by": ["loss"], "baseline": {"loss": "knn"}, "score": "acc"}
    with refused("not-repeats", names=["Instance"]):
        judge(table, **options)
    of_one = judge(table[table.Instance == "iris"].drop(columns="Instance"), **options)
    assert [arm.runs for arm in of_one.arms] == [5, 5]


def test_names_measurements_and_parts_of_the_seed_are_no_tasks():
    table = runs().assign(
        host=["a", "b", "c", "a"] * 3,
        minutes=[31.0 + 0.7 * place for place in range(12)],
        tag=[f"run {place}" for place in range(12)],
        split=["x", "y", "x", "y"] * 3,  # the same for a seed in every configuration
    )
    assert judged(table).arms[1].runs == 4
    repeats = table[["loss", "acc"]].assign(rep=[0, 1, 2, 3] * 3)
    assert judged(repeats).arms[1].runs == 4


def test_rows_that_repeat_are_refused():
    table = runs().drop(columns="seed")
    with refused("repeated-rows", names=["rows 13 to 24", "rows 1 to 12"]):
        judged(pd.concat([table, table]))
    with refused("repeated-rows"):
        judged(pd.concat([table, table]).sort_values("acc"))
    coarse = table.assign(acc=table.acc.round(2))
    assert judged(coarse).arms[1].runs == 4


def test_rows_that_summarize_others_are_left_out_and_named():
    mean = runs().groupby("loss", as_index=False).acc.mean()
    table = pd.concat([runs(), mean.assign(seed="avg"), mean.assign(seed="std", acc=0.01)])
    verdict = judged(table)
    assert [arm.runs for arm in verdict.arms] == [4, 4, 4]
    assert any("6 rows" in note and "avg" in note for note in verdict.results.warnings)


def test_prompts_with_numbers_are_not_counted_as_runs():
    scores = {"model": ["a"] * 50 + ["b"] * 50, "prompt_id": [*range(50)] * 2}
    table = pd.DataFrame(scores).assign(score=np.random.default_rng(0).normal(size=100))
    asked = {"by": ["model"], "baseline": {"model": "a"}, "score": "score"}
    with refused("not-repeats", names=["prompt_id"]):
        judge(table, **asked)
    assert judge(table.rename(columns={"prompt_id": "run_id"}), **asked).arms[1].runs == 50
