"""The seeds of a campaign: counted, or drawn from its secret."""

import json

import pytest

from sweep.cli import main
from sweep.gate.campaign import Campaign
from sweep.gate.seeds import Seeds


def test_without_a_secret_the_number_is_the_seed():
    assert [Seeds().of(number) for number in (0, 7, 1003)] == [0, 7, 1003]
    assert Seeds().baseline(2001) == 2


def test_seeds_from_a_secret_differ_and_lead_back_to_their_run():
    seeds = Seeds("one")
    numbers = range(0, 1 << 24, 4999)
    drawn = [seeds.of(number) for number in numbers]
    assert len(set(drawn)) == len(numbers)
    assert [seeds.number(seed) for seed in drawn] == list(numbers)
    assert all(0 <= seed < 1 << 24 for seed in drawn)
    assert drawn != [Seeds("other").of(number) for number in numbers]
    assert not set(map(seeds.of, range(1000))) & set(range(1000))
    assert (seeds.number(-1), seeds.number(1 << 24)) == (-1, -1)


def answer(capsys, *words):
    status = main(["gate", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_campaign_by_hand_says_which_seeds_of_its_secret_to_run(here, capsys):
    words = ("--worthwhile", "0.1", "--first-seeds", "3", "--secret", "mine")
    _, said = answer(capsys, "start", "camp", *words)
    [need] = said["needs"]
    assert need["seeds"] == [Seeds("mine").of(number) for number in range(3)]
    assert main(["gate", "record", "camp", "baseline", "0", "0.5"]) == 2
    assert "[seed-not-asked]" in capsys.readouterr().err
    for seed, score in zip(need["seeds"], (0.5, 0.52, 0.51), strict=True):
        _, said = answer(capsys, "record", "camp", "baseline", str(seed), str(score))
    _, said = answer(capsys, "propose", "camp", "--note", "wider")
    while said["outcome"] == "more":
        for need in said["needs"]:
            for seed in need["seeds"]:
                score = 0.5 + 0.4 * (need["arm"] == "proposal") + seed % 7 / 100
                line = ("record", "camp", need["arm"], str(seed), str(score))
                _, said = answer(capsys, *line)
    assert said["outcome"] == "keep"
    campaign = Campaign.read(here / "camp")
    again = [list(map(campaign.seeds.baseline, arm.scores)) for arm in campaign.baselines[:2]]
    assert again == [[0] * 8, [1] * 3]
    _, said = answer(capsys, "recheck", "camp")
    assert [campaign.seeds.baseline(seed) for seed in said["needs"][0]["seeds"]] == [2] * 8


SPACE = """
name: toy
program: {command: [python, toy.py, "{seed}"]}
objective: {metric: score, worthwhile: 0.1}
baselines: [{}]
search: {configurations: 0}
"""


def test_each_campaign_with_a_program_draws_its_own_seeds(here, capsys):
    (here / "toy.py").write_text("")
    (here / "toy.yaml").write_text(SPACE)
    asked = []
    for name in ("one", "two"):
        _, said = answer(capsys, "start", name, "--space", "./toy.yaml")
        asked.append(said["needs"][0]["seeds"])
        assert Campaign.read(here / name).verdict().needs[0].seeds == tuple(asked[-1])
    assert not set(asked[0]) & set(asked[1])
    assert not {*asked[0], *asked[1]} & set(range(8))
