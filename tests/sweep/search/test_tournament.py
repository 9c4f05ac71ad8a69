"""Arms tuned on equal budgets: each by a study of its own, inside one sweep and one event log."""

import itertools
import math
from collections import Counter

import pytest

from sweep.record.sweep_record import planned_trials
from sweep.search.history import outcome
from sweep.space.arms import arm_of, arms
from tests.sweep.search.instant_sweeps import ALPHA, ETA, drain, ended, searcher_in
from tests.sweep.spaces import make_spec

RULES = ["GRPO", "AR", "RLOO"]
PARAMETERS = {
    "rule": {"choice": RULES},
    "algorithm.advantage": {"by": {"rule": {"RLOO": "rloo"}}, "else": "grpo"},
    "optim.lr": {"loguniform": [1e-5, 1e-3]},
    ALPHA: {"uniform": [0.1, 0.5], "when": {"rule": "AR"}, "else": 0.0},
}
SEARCH = {"sampler": "tpe", "tune_within": "rule", "configurations": 6, "startup": 2, "seed": 3}


def tournament(folder, **changes):
    return make_spec(
        folder,
        **{"parameters": PARAMETERS, "search": SEARCH, "baselines": [], "seeds": [0], **changes},
    )


def score(suggestion):
    return ended(-abs(math.log10(suggestion["parameters"]["optim.lr"]) + 4))


def by_rule(suggestions):
    return {
        rule: [
            suggestion["parameters"]
            for suggestion in suggestions
            if suggestion["parameters"]["rule"] == rule
        ]
        for rule in RULES
    }


def test_every_arm_has_the_same_budget_and_they_take_turns(tmp_path):
    spec = tournament(tmp_path)
    seen = drain(searcher_in(tmp_path, spec), result=score)
    assert [trial["parameters"]["rule"] for trial in seen] == RULES * 6
    assert planned_trials(spec) == len(seen) == 18
    rule_settings = {
        (trial["parameters"]["rule"], trial["overrides"]["algorithm.advantage"]) for trial in seen
    }
    assert rule_settings == {("GRPO", "grpo"), ("AR", "grpo"), ("RLOO", "rloo")}
    assert {trial["overrides"][ALPHA] for trial in seen if trial["parameters"]["rule"] != "AR"} == {
        0.0
    }
    first = [{row["optim.lr"] for row in rows[:2]} for rows in by_rule(seen).values()]
    assert first[0] == first[1] == first[2]  # all begin with the same values of what they share


@pytest.mark.parametrize("worse", [-1.0, math.nan])
def test_what_happens_to_one_arm_changes_no_other(tmp_path, worse):
    def spoiled(suggestion):
        return ended(worse) if suggestion["parameters"]["rule"] == "AR" else score(suggestion)

    spec = tournament(tmp_path)
    runs = []
    for name, result in (("fair", score), ("spoiled", spoiled)):
        (tmp_path / name).mkdir()
        runs.append(by_rule(drain(searcher_in(tmp_path / name, spec), parallel=1, result=result)))
    fair, other = runs
    assert [len(rows) for rows in other.values()] == [6, 6, 6]
    assert fair["GRPO"] == other["GRPO"] and fair["RLOO"] == other["RLOO"]
    assert fair["AR"] != other["AR"]  # its own study did see its scores


def test_an_exhausted_or_extended_arm_leaves_others_their_budget(tmp_path):
    small = {**PARAMETERS, "optim.lr": {"choice": [1e-4, 1e-3]}}
    spec = tournament(tmp_path, parameters=small)
    assert planned_trials(spec) == 2 + 6 + 2
    searcher = searcher_in(tmp_path, spec)
    assert Counter(trial["parameters"]["rule"] for trial in drain(searcher, result=score)) == {
        "GRPO": 2,
        "AR": 6,
        "RLOO": 2,
    }
    more = tournament(tmp_path, parameters=small, search={**SEARCH, "configurations": 8})
    assert [
        trial["parameters"]["rule"] for trial in drain(searcher_in(tmp_path, more), result=score)
    ] == ["AR", "AR"]


def test_a_grid_is_gone_through_in_every_arm(tmp_path):
    grid = {**PARAMETERS, "optim.lr": {"choice": [1e-4, 1e-3]}, ALPHA: {**PARAMETERS[ALPHA]}}
    grid[ALPHA] = {"choice": [0.1, 0.3], "when": {"rule": "AR"}, "else": 0.0}
    spec = tournament(tmp_path, parameters=grid, search={"sampler": "grid", "tune_within": "rule"})
    seen = drain(searcher_in(tmp_path, spec), result=score)
    assert planned_trials(spec) == len(seen) == 2 + 4 + 2 and spec.adaptive


def test_baselines_count_in_the_budget_of_their_arm(tmp_path):
    listed = [
        {"rule": rule, "optim.lr": 1e-4, **({ALPHA: 0.3} if rule == "AR" else {})} for rule in RULES
    ]
    spec = tournament(tmp_path, baselines=listed)
    seen = drain(searcher_in(tmp_path, spec), parallel=1, result=score)
    assert [rows[0]["optim.lr"] for rows in by_rule(seen).values()] == [1e-4] * 3
    assert planned_trials(spec) == len(seen) == 3 * 7


def test_any_categorical_parameter_makes_arms(tmp_path):
    losses = {"algorithm.loss": {"choice": ["clipped", "gspo"]}, ETA: {"uniform": [0.2, 0.9]}}
    spec = tournament(
        tmp_path, parameters=losses, search={**SEARCH, "tune_within": "algorithm.loss"}
    )
    configurations = searcher_in(tmp_path, spec).configurations
    assert list(arms(spec)) == ["clipped", "gspo"] and configurations == []
    searcher = searcher_in(tmp_path, spec)
    drain(searcher, result=lambda trial: ended(trial["parameters"][ETA]))
    names = [arm_of(spec, configuration.parameters) for configuration in searcher.configurations]
    assert names == list(itertools.islice(itertools.cycle(arms(spec)), 12))
    assert all(
        outcome(configuration, [0]).state == "COMPLETE" for configuration in searcher.configurations
    )
