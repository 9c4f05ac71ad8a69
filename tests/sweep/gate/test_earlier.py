"""A new campaign continues the error budget of earlier ones of the same program."""

import json
import shutil

import pytest

from dashboards.statistics.online_levels import lord_level, spending
from loptune.errors import ConfigError
from sweep.cli import main
from sweep.commands import gate
from sweep.gate.campaign import Campaign
from sweep.gate.earlier import positions
from tests.refusals import refused

SPACE = """
name: toy
program: {command: [python, toy.py, "{lr}", "{seed}"], defaults: {lr: 0.1}}
objective: {metric: score, worthwhile: 0.1}
baselines: [{}]
search: {configurations: 0}
"""


def answer(capsys, *words):
    status = main(["gate", *words, "--json"])
    captured = capsys.readouterr()
    assert captured.out, captured.err
    return status, json.loads(captured.out)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text("")
    (tmp_path / "toy.yaml").write_text(SPACE)
    (tmp_path / "other.yaml").write_text(SPACE.replace("score", "loss"))
    return tmp_path


def record_needed(capsys, folder, *, mean):
    """Record what is needed until the campaign decides; return the answer."""
    _, said = answer(capsys, "status", folder)
    while said["outcome"] == "more":
        for need in said["needs"]:
            for seed in need["seeds"]:
                noise = seed % 9973 / 160_000  # three seeds drawn from a secret never share it
                score = str((mean if need["arm"] == "proposal" else 0.5) + noise)
                _, said = answer(capsys, "record", folder, need["arm"], str(seed), score)
    return said


def propose(capsys, folder, lr, *, mean):
    """Propose a change that scores ``mean``; return the answer that decides it."""
    record_needed(capsys, folder, mean=mean)
    answer(capsys, "propose", folder, f"lr={lr}")
    return record_needed(capsys, folder, mean=mean)


def test_levels_go_on_where_the_earlier_campaigns_ended(here, capsys):
    options = ("--space", "./toy.yaml", "--first-seeds", "3")
    answer(capsys, "start", "one", *options)
    for lr, mean in ((1, 0.3), (2, 0.9), (3, 0.3)):
        propose(capsys, "one", lr, mean=mean)
    answer(capsys, "start", "unlike", "--space", "./other.yaml")
    _, said = answer(capsys, "start", "two", *options)
    [earlier] = said["earlier"]
    assert (earlier["proposals"], earlier["kept"]) == (3, [2])
    decided = propose(capsys, "two", 1, mean=0.3)
    assert decided["level"] == pytest.approx(lord_level([2], 4, 0.1))
    main(["gate", "start", "three", *options])
    assert "Continues the error budget of one, two: 4 proposals, 1 kept." in capsys.readouterr().out
    for folder in ("one", "two"):  # the third has recorded what it needs to know
        for path in (here / folder).iterdir():
            path.unlink()
        (here / folder).rmdir()
    _, said = answer(capsys, "start", "four", *options)
    assert [each["proposals"] for each in said["earlier"]] == [3, 1, 0]
    decided = propose(capsys, "four", 1, mean=0.3)
    assert decided["level"] == pytest.approx(lord_level([2], 5, 0.1))
    _, said = answer(capsys, "start", "five", *options, "--new-budget")
    assert said["earlier"] == []
    decided = propose(capsys, "five", 1, mean=0.3)
    assert decided["level"] == pytest.approx(lord_level([], 1, 0.1))


def test_campaigns_by_hand_are_carried_on_if_they_are_named(here, capsys):
    options = ("--worthwhile", "0.1", "--first-seeds", "3")
    answer(capsys, "start", "one", *options)
    record_needed(capsys, "one", mean=0.5)
    answer(capsys, "propose", "one", "--note", "wider")
    answer(capsys, "withdraw", "one")
    _, said = answer(capsys, "start", "two", *options)
    assert said["earlier"] == []
    _, said = answer(capsys, "start", "three", *options, "--after", "one", "two")
    assert [each["proposals"] for each in said["earlier"]] == [1, 0]
    assert positions(Campaign.read(here / "three").started["earlier"]) == (1, [])
    assert main(["gate", "start", "four", *options, "--after", "none"]) == 3
    assert "[no-campaign]" in capsys.readouterr().err
    assert main(["gate", "start", "four", *options, "--after", "one", "--new-budget"]) == 2
    assert "[two-budgets]" in capsys.readouterr().err


def test_a_campaign_s_own_record_replaces_every_copy(here, capsys):
    """A re-check gives up the kept change after a later campaign has copied it. The
    folders are read in the order of their names: copies first.
    """
    options = ("--space", "./toy.yaml", "--first-seeds", "3")
    answer(capsys, "start", "d", *options)
    propose(capsys, "d", 1, mean=0.9)
    record_needed(capsys, "d", mean=0.5)
    _, said = answer(capsys, "start", "a", *options)
    assert said["earlier"][0]["kept"] == [1]
    with Campaign.read(here / "d").change() as campaign:
        campaign.recheck()
    with refused("earlier-open", ConfigError, names=("d", "re-check")):
        gate.start("b", space="./toy.yaml")
    record_needed(capsys, "d", mean=0.5)
    assert Campaign.read(here / "d").kept == []
    _, said = answer(capsys, "start", "b", *options)
    assert [each["kept"] for each in said["earlier"]] == [[], []]
    shutil.rmtree(here / "d")
    _, said = answer(capsys, "start", "c", *options)
    assert said["earlier"][0]["kept"] == []  # the copy in `b` is the later one


def test_two_campaigns_never_spend_one_budget(here, capsys):
    options = ("--space", "./toy.yaml", "--first-seeds", "3")
    answer(capsys, "start", "one", *options)
    record_needed(capsys, "one", mean=0.5)
    assert main(["gate", "propose", "one", "lr=1"]) == 11
    capsys.readouterr()
    with refused("earlier-open", ConfigError, names=("one", "open proposals: 1")) as told:
        gate.start("two", space="./toy.yaml", first_seeds=3)
    for words in ("sweep gate withdraw", "sweep gate status", "--new-budget"):
        assert words in str(told.value)
    answer(capsys, "start", "apart", *options, "--new-budget")  # carries nothing on
    shutil.rmtree(here / "apart")
    record_needed(capsys, "one", mean=0.3)
    answer(capsys, "start", "two", *options)
    answer(capsys, "start", "three", *options)
    for earlier in ("one", "two"):
        with refused("carried-on", ConfigError, names=("campaign three", "sweep gate status")):
            gate.propose(earlier, ["lr=2"])
    assert len(Campaign.read(here / "one").proposals) == 1
    propose(capsys, "three", 2, mean=0.3)
    (here / "three" / "events.jsonl").write_text("")
    with refused("carried-on", ConfigError, names=("campaign two",)):
        gate.propose("one", ["lr=2"])


def test_a_damaged_campaign_beside_a_new_one_is_named(here, capsys):
    options = ("--space", "./toy.yaml")
    answer(capsys, "start", "one", *options)
    events = here / "one" / "events.jsonl"
    events.write_text(events.read_text().replace("score", "scare"))
    assert main(["gate", "start", "two", *options]) == 2
    printed = capsys.readouterr().err
    assert "[earlier-damaged]" in printed and "--new-budget" in printed
    assert main(["gate", "start", "two", *options, "--new-budget"]) == 11


def test_the_expected_false_keeps_that_the_guide_states():
    fractions = 0.05 * spending()
    assert 5 * fractions[:20].sum() == pytest.approx(0.22, abs=0.005)
    assert fractions[:100].sum() == pytest.approx(0.05, abs=0.005)
