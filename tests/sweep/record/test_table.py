import json
import math

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
