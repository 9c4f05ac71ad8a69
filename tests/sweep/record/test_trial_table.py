import json
import math

import pytest

from dashboards.trial import TrialRecord
from loptune.terminal.table import duration, number, print_json
from sweep.record.trial_table import (
    parameter_text,
    print_trials,
    setting_text,
    step_text,
    table_row,
)
from sweep.space.parameters import ParameterSpec
from tests.sweep.search.test_tournament import tournament
from tests.sweep.spaces import make_spec
from trainer.rules.names import ADVANTAGE_KEY, LOSS_KEY

ROWS = [
    TrialRecord(
        name="c000-s0",
        configuration="0",
        seed="0",
        score=0.5,
        step=60.0,
        total_steps=60,
        parameters={"algorithm.ar_alpha": 0.3},
    ),
    TrialRecord(
        name="c001-s0",
        configuration="1",
        seed="0",
        state="FAIL",
        step=3.0,
        total_steps=60,
        reason="died [bold]",
        parameters={"algorithm.ar_alpha": 0.1},
    ),
    TrialRecord(name="c002-s0", configuration="2", seed="0", state="WAITING"),
]


def test_trials_are_printed_as_columns(tmp_path, capsys):
    print_trials(ROWS, make_spec(tmp_path), {})
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "trial    state     step   score  parameters    reason",
        "c000-s0  COMPLETE  60/60  0.5    ar_alpha=0.3",
        "c001-s0  FAIL      3/60          ar_alpha=0.1  died [bold]",
        "c002-s0  WAITING",
    ]


@pytest.mark.parametrize(
    ("resolved", "point", "shown"),
    [
        ({ADVANTAGE_KEY: "grpo", "algorithm.ar_alpha": 0.3}, None, "grpo ar_alpha=0.3"),
        ({LOSS_KEY: "clipped", "optim.lr": 1e-4}, None, "grpo lr=0.0001"),
        ({LOSS_KEY: "my_rules:Cautious"}, None, "Cautious"),
        ({ADVANTAGE_KEY: "rloo", LOSS_KEY: "gspo"}, None, "rloo with gspo"),
        ({LOSS_KEY: "clipped", "optim.lr": 1e-4}, {"rule": "GRPO"}, "GRPO lr=0.0001"),
        ({"algorithm.ar_alpha": 0.3}, None, "ar_alpha=0.3"),
    ],
)
def test_a_rule_has_the_one_name_that_reports_use(tmp_path, resolved, point, shown):
    spec = make_spec(tmp_path)
    if point is not None:
        search = spec.search.model_copy(update={"tune_within": "rule"})
        spec = spec.model_copy(update={"search": search})
    assert setting_text(spec, resolved, point) == shown


def test_an_arm_shows_what_is_tuned_within_it(tmp_path):
    spec = tournament(tmp_path)
    resolved = {
        ADVANTAGE_KEY: "grpo", "algorithm.ar_alpha": 0.3, "algorithm.lopti_eta": 0.0,
        "optim.lr": 1e-4,
    }  # fmt: skip
    point = {"rule": "AR", "algorithm.ar_alpha": 0.3, "optim.lr": 1e-4}
    by_rule = ParameterSpec.model_validate({"by": {"rule": {"AR": 0.3}}, "else": 0.0})
    eta = ParameterSpec.model_validate(
        {"uniform": [0.1, 0.9], "when": {"rule": "Lopti"}, "else": 0.0}
    )
    parameters = {**spec.parameters, "algorithm.ar_alpha": by_rule, "algorithm.lopti_eta": eta}
    spec = spec.model_copy(update={"parameters": parameters})
    assert setting_text(spec, resolved, point) == "AR lr=0.0001"


def test_a_row_has_whole_numbers_and_none_for_what_is_missing():
    rows = [table_row(trial) for trial in ROWS]
    assert [(row["configuration"], row["seed"], row["step"]) for row in rows] == [
        (0, 0, 60),
        (1, 0, 3),
        (2, 0, 0),
    ]
    assert [row["score"] for row in rows] == [0.5, None, None]


def test_json_has_null_where_a_number_is_not_finite(capsys):
    print_json({"score": math.nan, "list": (1, math.inf), "rows": [{"x": -math.inf}]})
    shown = json.loads(capsys.readouterr().out)
    assert shown["score"] is None and shown["list"] == [1, None]
    assert shown["rows"] == [{"x": None}]


def test_short_forms():
    assert [number(value) for value in (None, 0.123456, 3, "grpo", True)] == [
        "",
        "0.1235",
        "3",
        "grpo",
        "True",
    ]
    assert [duration(seconds) for seconds in (12.4, 200, 7500)] == ["12s", "3m 20s", "2h 05m"]
    assert parameter_text({"algorithm.ar_alpha": 0.3, "lopti": False}) == "ar_alpha=0.3 lopti=False"
    assert [step_text(row) for row in ROWS] == ["60/60", "3/60", ""]
    assert step_text(TrialRecord("c003-s0", "3", "0", "RUNNING", step=7.0)) == "7"
    assert [row.ended for row in ROWS] == [True, True, False]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"algorithm.ar_alpha": 0.3, "optim.lr": 1e-6}, "ar_alpha=0.3 lr=1e-06"),
        (
            {"actor.optim.lr": 1e-6, "critic.optim.lr": 1e-5, "critic.warmup": 2},
            "actor.optim.lr=1e-06 critic.optim.lr=1e-05 warmup=2",
        ),
        ({"a.name": "x", "b.name": "y", "lr": 1}, "a.name=x b.name=y lr=1"),
        ({"lr": 0.1, "critic.lr": 0.2}, "lr=0.1 critic.lr=0.2"),
        ({"betas": [0.9, 0.95], "flag": None}, "betas=[0.9, 0.95] flag="),
        ({"prompt": "two\nlines"}, "prompt=two lines"),
    ],
)
def test_every_parameter_has_a_name_of_its_own_on_one_line(parameters, text):
    assert parameter_text(parameters) == text


def test_a_long_value_takes_one_part_of_a_line():
    assert len(parameter_text({"prompt": "x" * 10_000, "lr": 0.1})) < 90
    assert len(parameter_text({"layers": [64] * 10_000})) < 90
