"""Several tasks: differences within a task, averaged; a task is not a run."""

import math

import numpy as np
import pandas as pd
import pytest

from dashboards import judge
from tests.refusals import refused

SCALES = {"hopper": 2000.0, "ant": 900.0}


def table(counts, differences=None):
    """Runs on tasks with seeds of their own; ``counts`` maps (arm, task) to the number of runs."""
    generator = np.random.default_rng(0)
    rows = []
    for (arm, task), count in counts.items():
        level = SCALES[task] - (45 if arm == "sac" else 0)
        for score in generator.normal(level, 20, count):
            rows.append({"algo": arm, "env": task, "seed": len(rows), "return": score})
    return pd.DataFrame(rows)


UNEQUAL = {("ppo", "hopper"): 4, ("ppo", "ant"): 16, ("sac", "hopper"): 16, ("sac", "ant"): 4}
ASKED = {"by": ["algo"], "baseline": {"algo": "ppo"}, "score": "return", "fresh": True}


def test_an_arm_does_not_gain_by_more_runs_of_an_easy_task():
    runs = table(UNEQUAL)
    means = runs.groupby(["algo", "env"])["return"].mean()
    expected = np.mean([means["sac", env] - means["ppo", env] for env in SCALES])
    judged = judge(runs, task=["env"], **ASKED)
    base, arm = judged.arms
    assert (base.runs, arm.runs, arm.layout, arm.outcome) == (20, 20, "by task", "worse")
    assert arm.difference == pytest.approx(expected)
    assert base.mean == pytest.approx(means["ppo"].mean())
    variances = runs.groupby(["algo", "env"])["return"].var()
    parts = [(variances[cell] / count, count - 1) for cell, count in UNEQUAL.items()]
    error = math.sqrt(sum(part for part, _ in parts)) / 2
    dof = sum(part for part, _ in parts) ** 2 / sum(part**2 / f for part, f in parts)
    low, high = arm.interval
    assert (low + high) / 2 == pytest.approx(expected)
    from scipy import special

    f = math.floor(dof)
    assert (high - low) / 2 == pytest.approx(error * special.stdtrit(f, 1 - 0.05 * f / (f + 2)))
    by_task = judged.results.by_task
    assert set(by_task) == set(SCALES)
    for env, part in by_task.items():
        assert part.arm_table[1].difference == pytest.approx(means["sac", env] - means["ppo", env])


def test_tasks_that_share_their_seeds_are_averaged_within_a_seed():
    rows = []
    for seed in range(5):
        for task, scale in SCALES.items():
            for arm in ("ppo", "sac"):
                gain = (10 + seed if task == "hopper" else 2 * seed) * (arm == "sac")
                rows.append((arm, task, seed, scale + 3 * seed + gain))
    runs = pd.DataFrame(rows, columns=["algo", "env", "seed", "return"])
    judged = judge(runs, task=["env"], **ASKED)
    assert [arm.runs for arm in judged.arms] == [5, 5]
    assert judged.arms[1].layout == "paired"
    # (10 + s + 2 s) / 2 over the seeds 0 to 4
    assert judged.arms[1].difference == pytest.approx(np.mean([(10 + 3 * s) / 2 for s in range(5)]))
    lost = runs.drop(
        index=runs[(runs.seed == 4) & (runs.env == "ant") & (runs.algo == "sac")].index
    )
    assert [arm.runs for arm in judge(lost, task=["env"], **ASKED).arms] == [5, 4]
    failed = runs.assign(**{"return": runs["return"].mask(runs.index == 3)})
    assert [arm.failed for arm in judge(failed, task=["env"], **ASKED).arms] == [0, 1]


def test_a_failed_run_gets_a_score_of_its_own_task():
    runs = table(UNEQUAL)
    runs.loc[runs[runs.env == "ant"].index[0], "return"] = math.nan
    judged = judge(runs, task=["env"], **ASKED)
    low, high = judged.arms[1].interval
    assert judged.arms[0].failed == 1 and high - low < 120  # tasks differ by 1100


def test_an_arm_that_lacks_a_task_is_left_out():
    runs = table({**UNEQUAL, ("td3", "ant"): 5})
    judged = judge(runs, task=["env"], **ASKED)
    assert len(judged.arms) == 2
    assert any("td3" in note for note in judged.results.warnings)
    with refused("lacks-tasks"):
        judge(runs, task=["env"], **{**ASKED, "baseline": {"algo": "td3"}})


def test_one_run_of_each_task_gives_no_noise():
    with refused("one-seed"):
        judge(table(dict.fromkeys(UNEQUAL, 1)), task=["env"], **ASKED)


def test_a_number_is_compared_with_the_mean_over_tasks():
    runs = table(UNEQUAL)
    judged = judge(runs, task=["env"], against=1000.0, **{**ASKED, "baseline": {}})
    means = runs.groupby(["algo", "env"])["return"].mean()
    assert judged.arms[0].difference == pytest.approx(means["ppo"].mean() - 1000)


def test_an_arm_that_failed_on_all_runs_of_a_task_is_left_out():
    """The mean of the other tasks would be no difference over tasks."""
    runs = table({**UNEQUAL, ("td3", "hopper"): 3, ("td3", "ant"): 5})
    failed = (runs.algo == "td3") & (runs.env == "ant")
    runs["return"] = runs["return"].mask(failed)
    judged = judge(runs, task=["env"], **ASKED)
    assert len(judged.arms) == 2
    assert any("td3" in note for note in judged.results.warnings)
    with refused("failed-task"):
        judge(runs, task=["env"], **{**ASKED, "baseline": {"algo": "td3"}})
