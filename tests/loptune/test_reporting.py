"""``lt.report``: the line that a sweep reads, from a user's own script."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import loptune as lt
from loptune.errors import ConfigError
from tests.paths import ROOT
from tests.refusals import refused


def reported(capsys):
    prefix, line = capsys.readouterr().out.removesuffix("\n").split(" ", 1)
    assert prefix == "[loptune]"
    return json.loads(line)


def test_numbers_of_any_library_are_one_line(capsys):
    lt.report(
        {"a": 1, "b": np.float32(0.5), "c": torch.tensor([2.0]), "d": math.nan, "e": None},
        step=np.int64(3),
    )
    line = reported(capsys)
    assert math.isnan(line.pop("d"))
    assert line == {"step": 3, "a": 1.0, "b": 0.5, "c": 2.0, "e": None}


@pytest.mark.parametrize(
    ("metrics", "step", "code"),
    [
        ({"a": "0.5"}, 1, "metric-not-a-number"),
        ({"a": True}, 1, "metric-not-a-number"),
        ({"a": [0.5]}, 1, "metric-not-a-number"),
        ({"a": torch.zeros(2)}, 1, "metric-not-a-number"),
        ({"a": 10**400}, 1, "metric-not-a-number"),
        ({"": 0.5}, 1, "metric-name"),
        ({3: 0.5}, 1, "metric-name"),
        ({"a\nb": 0.5}, 1, "metric-name"),
        ({"step": 0.5}, 1, "metric-name"),
        ({"a": 0.5}, -1, "metric-step"),
        ({"a": 0.5}, 1.0, "metric-step"),
        ({"a": 0.5}, True, "metric-step"),
    ],
)
def test_what_is_no_evaluation_is_refused(metrics, step, code, capsys):
    with refused(code, ConfigError):
        lt.report(metrics, step=step)
    assert capsys.readouterr().out == ""


def test_of_several_ranks_the_first_reports(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    lt.report({"a": 1}, step=1)
    monkeypatch.setenv("RANK", "0")
    lt.report({"a": 2}, step=1)
    assert reported(capsys) == {"step": 1, "a": 2.0}


def test_a_script_reports_at_once_by_the_standard_library_beside_its_own_trainer(tmp_path):
    (tmp_path / "trainer.py").write_text("SCORE = 0.4\n")
    (tmp_path / "mine.py").write_text(
        "import sys, trainer\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import loptune as lt\n"
        "lt.report({'eval/accuracy': trainer.SCORE}, step=10)\n"
        "import os; os._exit(0)  # without a flush of what is buffered\n"
    )
    # -S: no package of the environment can be imported
    ended = subprocess.run(
        [sys.executable, "-S", "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    assert ended.stdout == '[loptune] {"step": 10, "eval/accuracy": 0.4}\n'
