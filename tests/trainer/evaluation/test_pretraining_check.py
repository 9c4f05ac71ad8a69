import itertools
import json
import re

import numpy as np
import pytest

from sweep.cli import main as sweep
from trainer.evaluation.pretraining_check import PretrainingCheck
from trainer.types import Completion, Problem, Rollout, RolloutGroup


def check(rewards, truncated=0.0):
    values = np.array(rewards, float)
    cut = np.arange(values.size).reshape(values.shape) < truncated * values.size
    problem = Problem("p", "", "", "", "generated")
    groups = [
        RolloutGroup(
            index,
            [
                Rollout(
                    index,
                    problem,
                    (),
                    Completion((0,) * 5, (-0.3,) * 5, "length" if is_cut else "stop"),
                    reward,
                    correct=bool(reward > 0),
                )
                for reward, is_cut in zip(row, cut_row, strict=True)
            ],
        )
        for index, (row, cut_row) in enumerate(zip(values.tolist(), cut, strict=True))
    ]
    return PretrainingCheck(groups, {"dev": 50})


def test_zero_variance_groups_count_all_possible_groups():
    rewards = [[1, 1, 1, 0, 0.5], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1]]
    sample = check(rewards)
    for size in (2, 3, 5):
        groups = [group for row in rewards for group in itertools.combinations(row, size)]
        assert sample.zero_variance(size) == pytest.approx(
            np.mean([len(set(group)) == 1 for group in groups])
        )


def test_zero_variance_groups_are_those_without_advantages():
    rounding = check([[1000, 1000.0001, 1000.0001, 999.9999] * 2])
    assert rounding.zero_variance(4) == 1
    small = check([[0, 1e-10] * 4])
    assert small.zero_variance(8) == 0
    assert small.zero_variance(1) == 0  # not relative to the group


def test_zero_variance_groups_and_an_evaluations_error_have_no_bias():
    chance = np.random.default_rng(0)
    accuracy = np.array([0.05, 0.3, 0.8])
    checks = [check(chance.random((3, 8)) < accuracy[:, None]) for _ in range(4000)]
    zero_variance = [sample.zero_variance(4) for sample in checks]
    assert np.mean(zero_variance) == pytest.approx(
        np.mean(accuracy**4 + (1 - accuracy) ** 4), abs=4 * np.std(zero_variance) / 4000**0.5
    )
    squares = [sample.evaluation_error(100, 4) ** 2 for sample in checks]
    expected = np.mean(accuracy * (1 - accuracy)) / 400
    assert np.mean(squares) == pytest.approx(expected, abs=4 * np.std(squares) / 4000**0.5)


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        (check([[0, 0], [0, 0]]), "none of 4 completions was correct"),
        (check([[1, 1], [1, 1]]), "all 4 completions have the same reward"),
    ],
)
def test_what_forbids_learning_is_said(sample, what):
    assert [what in str(advice) for advice in sample.advice()] == [True]


@pytest.mark.parametrize(
    ("truncated", "places"),
    [
        (0.0, ["data.train, reward.functions"]),
        (0.5, ["rollout.max_new_tokens", "data.train, reward.functions"]),
        (1.0, ["rollout.max_new_tokens"]),  # no answer was reached: no verdict on the problems
    ],
)
def test_truncated_completions_explain_equal_rewards(truncated, places):
    sample = check([[0, 0], [0, 0]], truncated)
    assert [advice.where for advice in sample.advice()] == places


def test_plan_and_dry_run_sample_the_start_policy(
    tmp_path, monkeypatch, capsys, typed, tiny_policy
):
    monkeypatch.chdir(tmp_path)
    small = {
        "model.name_or_path": str(tiny_policy),
        "rollout.max_new_tokens": "4",
        "rollout.group_size": "2",
    }
    space = tmp_path / "space.yaml"
    settings = "".join(
        f"{key}: {value}, " for key, value in small.items() if key != "rollout.group_size"
    )
    space.write_text(
        f"name: looked\ntrainer: {{preset: tiny_kk, overrides: {{{settings}}}}}\n"
        "parameters: {rollout.group_size: {choice: [2, 16]}}\nsearch: {configurations: 2}\nseeds: "
        "[0, 1]\n"
    )
    drawn = json.loads(typed("sweep plan --sample 3 --json", space))["sample"]
    assert (
        drawn["problems"],
        drawn["completions_per_problem"],
        set(drawn["zero_variance_groups"]),
    ) == (3, 16, {"2", "16"})
    assert sweep(["plan", str(space), "--sample", "3"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"group size 16: 100% ", shown.out)
    assert "100% truncated at 4" in shown.out
    words = [f"{key}={value}" for key, value in small.items()]
    shown = typed("trainer run tiny_kk --sample 2", *words)
    assert "sample:      2 problems x 8 completions" in shown
    assert list(tmp_path.iterdir()) == [space]
