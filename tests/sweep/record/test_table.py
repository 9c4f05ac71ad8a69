import json
import math

import pytest

from sweep.record.table import TrialRow, duration, parameter_text, print_trials, step_text
from trainer.shell.table import number, print_json

ROWS = [
    TrialRow("c000-s0", 0, 0, "COMPLETE", 60, 60, 0.5, parameters={"algorithm.ar_alpha": 0.3}),
    TrialRow("c001-s0", 1, 0, "FAIL", 3, 60, None, "died [bold]", {"algorithm.ar_alpha": 0.1}),
    TrialRow("c002-s0", 2, 0),
]


def test_trials_are_printed_as_columns(capsys):
    print_trials(ROWS)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "trial    state     step   score  parameters    reason",
        "c000-s0  COMPLETE  60/60  0.5    ar_alpha=0.3",
        "c001-s0  FAIL      3/60          ar_alpha=0.1  died [bold]",
        "c002-s0  WAITING",
    ]


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
    assert step_text(TrialRow("c003-s0", 3, 0, "RUNNING", 7)) == "7"
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
