"""Warnings about verdicts that a plan cannot reach, and the commands that a plan prints."""

import json
import shlex
import sys

import pytest

from dashboards.words import REFUSAL_TEXT
from sweep.cli import main
from sweep.record.sweep_record import open_sweep
from sweep.space.file import load_space, published_spaces
from sweep.views.reach import out_of_reach
from tests.paths import ROOT
from tests.sweep.harness import sweep, write_space

LR = {"optim.lr": {"uniform": [1e-5, 1e-3]}}
ARMS = {"algorithm.advantage": {"choice": ["grpo", "rloo"]}, **LR}
TUNED = {"tune_within": "algorithm.advantage"}
GRID = {**ARMS, "optim.lr": {"choice": [1e-5, 3e-5, 1e-4, 3e-4, 1e-3]}}


def warned(folder, **changes):
    space = write_space(folder / "space.yaml", **changes)
    return [advice.what for advice in out_of_reach(load_space(space))]


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        (
            {"search": {"configurations": 7, **TUNED}, "parameters": ARMS},
            REFUSAL_TEXT["few trials"],
        ),
        (
            {
                "search": {"configurations": 23, **TUNED},
                "parameters": {**ARMS, "algorithm.ar_alpha": {"uniform": [0.0, 0.5]}},
            },
            REFUSAL_TEXT["few trials of two"],
        ),
        (
            {
                "search": {"configurations": 30, **TUNED},
                "parameters": {
                    **ARMS,
                    "algorithm.ar_alpha": {
                        "uniform": [0.0, 0.5],
                        "when": {"algorithm.advantage": "grpo"},
                    },
                },
            },
            REFUSAL_TEXT["baseline tunes more"],
        ),
        ({"search": {"configurations": 5}, "parameters": LR}, None),
        ({"search": {"configurations": 5}}, "baseline"),  # no alpha is exactly 0
        ({"search": {"configurations": 1}, "parameters": LR}, "one configuration"),
    ],
)
def test_what_cannot_be_reached_is_warned_about(tmp_path, changes, fact):
    warnings = warned(tmp_path, baselines=[], **changes)
    assert (fact is None) == (warnings == [])
    assert fact is None or (len(warnings) == 1 and fact in warnings[0])


def test_two_seeds_of_listed_configurations_confirm_nothing(tmp_path):
    listed = {"configurations": 0}
    (warning,) = warned(tmp_path, search=listed, seeds=[0, 1])
    assert "fewer than 3 seeds" in warning
    assert warned(tmp_path, search=listed, seeds=[0, 1, 2]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parameters": ARMS, "baselines": [], "search": {"configurations": 8, **TUNED}},
        # one grid for all arms: their peaks are compared on the grid's own seeds
        {
            "parameters": GRID,
            "baselines": [],
            "search": {"sampler": "grid", **TUNED},
            "seeds": [0, 1, 2],
        },
    ],
)
def test_what_can_be_reached_is_not_warned_about(tmp_path, changes):
    assert warned(tmp_path, **changes) == []


def test_the_starter_reaches_a_verdict():
    starter = ROOT / "trainer/commands/rule_project/rule_space.yaml"
    sys.path.insert(0, str(starter.parent))
    try:
        assert list(out_of_reach(load_space(starter))) == []
    finally:
        sys.path.remove(str(starter.parent))


def commands(printed: str) -> list[list[str]]:
    """Return the words behind ``sweep run`` of each command in a plan."""
    lines = [line.strip() for line in printed.splitlines()]
    return [shlex.split(line)[2:] for line in lines if line.startswith("sweep run ")]


KINDS = {
    "one baseline": {"baselines": [{"algorithm.ar_alpha": 0.1}], "search": {"configurations": 9}},
    "no baseline": {"baselines": [], "search": {"configurations": 9}},
    "arms": {"parameters": ARMS, "baselines": [], "search": {"configurations": 8, **TUNED}},
    "grid": {"parameters": GRID, "baselines": [], "search": {"sampler": "grid"}},
    "early stopping": {"scheduler": {"asha": {"grace_period": 1}}, "search": {"configurations": 9}},
    "a long name": {"name": "n" * 64, "search": {"configurations": 9}},
    "several seeds": {"seeds": [0, 1, 2, 3], "search": {"configurations": 4}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_of_a_plan_is_a_plan_again(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    write_space(tmp_path / "space.yaml", **KINDS[kind])
    typed = ["space.yaml", "trainer.max_steps=4", "--runs-dir", "else where"]
    assert main(["plan", *typed]) == 0
    measuring, planned = commands(capsys.readouterr().out)
    assert planned == typed
    assert main(["plan", *measuring, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["configurations"] >= 2 and plan["trials"] == 3 * plan["configurations"]
    assert len(plan["name"]) <= 64 and plan["name"].endswith("-noise")
    assert main(["plan", *measuring]) == 0
    # what measures the noise does not propose itself
    assert len(commands(capsys.readouterr().out)) == 1


def test_the_commands_of_published_spaces_can_be_planned(capsys):
    for name in published_spaces():
        assert main(["plan", name]) == 0
        for words in commands(capsys.readouterr().out):
            assert main(["plan", *words, "--json"]) == 0
            capsys.readouterr()


def test_a_small_plan_proposes_only_itself(tmp_path, typed):
    space = write_space(tmp_path / "space.yaml", search={"configurations": 0})
    assert commands(typed(f"sweep plan {space}"))[0][0] == str(space)
    assert len(commands(typed(f"sweep plan {space}"))) == 1
    [renamed] = commands(typed(f"sweep plan {space} --name other"))
    assert renamed[renamed.index("--name") + 1] == "other"


@pytest.mark.slow
def test_measuring_the_noise_as_printed_tells_the_plan(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = str(write_space(tmp_path / "space.yaml", **KINDS["arms"]))
    assert main(["plan", space]) == 0
    measuring, _ = commands(capsys.readouterr().out)
    code, out, err = sweep("run", *measuring, "--runs-dir", tmp_path / "runs")
    assert code == 0, out + err
    assert open_sweep(tmp_path / "runs", "fake-noise").spec.search.tune_within is None
    assert main(["plan", space]) == 0
    assert "measured in fake-noise" in capsys.readouterr().out
