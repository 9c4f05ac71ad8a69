"""Guards of a campaign: a better change is kept only if it is not worse on another metric."""

import json
import random

import pytest

from loptune.errors import ConfigError
from sweep.cli import main
from sweep.commands import gate
from sweep.gate.campaign import Campaign, CampaignSpec, Finished, start_campaign
from tests.refusals import refused

# smaller lengths are better, as the name says
SPEC = CampaignSpec(
    worthwhile=0.1, first_seeds=8, most_seeds=16, guards=["length:10", "memory:0.5:min"]
)


def noise(*key):
    return random.Random(str(key)).gauss(0, 1)


def guard_values(arm, seed, longer):
    length = 800 + 4 * noise("length", arm, seed) + (longer if arm == "proposal" else 0)
    return {"length": length, "memory": 12.0}  # memory does not depend on the seed


def record_needed(campaign, *, gain, longer):
    """Record what is needed until no proposal is open; return the last decision."""
    while (verdict := campaign.decide()).outcome == "more":
        for need in verdict.needs:
            for seed in need.seeds:
                score = 0.5 + 0.05 * noise(need.arm, seed) + gain * (need.arm == "proposal")
                values = guard_values(need.arm, seed, longer)
                campaign.record(need.arm, seed, score, guards=values)
    return verdict


@pytest.fixture
def folder(tmp_path):
    start_campaign(tmp_path / "camp", SPEC)
    with Campaign.read(tmp_path / "camp").change() as campaign:
        record_needed(campaign, gain=0, longer=0)
        campaign.propose({"lr": 2})
    return tmp_path / "camp"


def outcomes(verdict):
    return {guard.metric: guard.outcome for guard in verdict.answer.guards}


def test_a_gain_is_kept_if_every_guard_holds(folder):
    with Campaign.read(folder).change() as campaign:
        verdict = record_needed(campaign, gain=0.5, longer=0)
        assert verdict.outcome == "keep"
        assert outcomes(verdict) == {"length": "holds", "memory": "holds"}
    again = Campaign.read(folder).verdict(1)
    told = [guard.fields() for guard in again.answer.guards]
    assert told == [guard.fields() for guard in verdict.answer.guards]
    (length, memory) = again.answer.guards
    assert length.found.measured(length.sign) == pytest.approx(0, abs=8)
    assert memory.found.interval == (0, 0)


def test_a_gain_is_discarded_if_a_guard_fails(folder):
    with Campaign.read(folder).change() as campaign:
        verdict = record_needed(campaign, gain=0.5, longer=30)
        assert verdict.outcome == "discard"
        assert outcomes(verdict)["length"] == "fails"
        assert "worse on length by more than the margin" in verdict.reason
        assert campaign.kept == []
        assert campaign.proposals[0].decision["guards"][0]["difference"] == pytest.approx(30, abs=8)


def test_a_gain_waits_for_an_undecided_guard_and_is_never_kept_without_it(folder):
    with Campaign.read(folder).change() as campaign:
        verdict = record_needed(campaign, gain=0.5, longer=10)  # exactly the margin
        assert verdict.outcome == "discard"
        assert outcomes(verdict)["length"] != "holds"
        assert len(campaign.proposals[0].scores) > 8 or outcomes(verdict)["length"] == "fails"


def test_a_run_needs_a_finite_value_of_every_guard(folder):
    with Campaign.read(folder).change() as campaign:
        (seed,) = campaign.verdict().needs[0].seeds
        with refused("guard-missing", ConfigError, names=("memory",)):
            campaign.record("proposal", seed, 0.5, guards={"length": 800})
        with refused("no-guard", ConfigError, names=("length",)):
            campaign.record("proposal", seed, 0.5, guards={"lenght": 800})
        guards = {"length": {seed: float("nan")}, "memory": {seed: 12.0}}
        ran = Finished(arm="proposal", scores={seed: 0.5}, failed={}, guards=guards, proposal=1)
        campaign.record_batch([ran])
        verdict = campaign.decide()
        assert (verdict.outcome, "length is nan" in verdict.reason) == ("discard", True)


def test_a_baseline_whose_guard_moved_is_compared_again(folder):
    """All runs get longer by 100 from now on: that is no reason to discard the proposal."""

    def record(campaign):
        while (verdict := campaign.decide()).outcome == "more":
            for need in verdict.needs:
                for seed in need.seeds:
                    score = 0.5 + 0.05 * noise(need.arm, seed) + 0.5 * (need.arm == "proposal")
                    values = guard_values(need.arm, seed, 0)
                    values["length"] -= 100
                    campaign.record(need.arm, seed, score, guards=values)
        return verdict

    with Campaign.read(folder).change() as campaign:
        verdict = record(campaign)
        assert verdict.outcome == "keep"
        (move,) = campaign.moves("length")
        assert move[1].has_moved
        assert len(campaign.proposals[0].earlier) == 1
        assert verdict.answer.guards[0].found.gain == pytest.approx(0, abs=8)


def answer(capsys, *words):
    status = main(["gate", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_guards_by_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("--worthwhile", "0.1", "--guard", "length:10", "--guard", "memory:0.5:min")
    status, said = answer(capsys, "start", "camp", *words)
    assert (status, said["guards"]) == (11, [])
    assert main(["gate", "record", "camp", "baseline", "0", "0.5", "--guard", "length"]) == 2
    assert "[no-guard-value]" in capsys.readouterr().err
    proposed = False
    while said["outcome"] == "more" or not proposed:
        if said["outcome"] == "ready":
            status, said = answer(capsys, "propose", "camp", "--note", "longer answers")
            proposed = True
        for need in said["needs"]:
            for seed in need["seeds"]:
                score = 0.5 + 0.05 * noise(need["arm"], seed) + 0.5 * (need["arm"] == "proposal")
                values = guard_values(need["arm"], seed, 30).items()
                given = [word for key, value in values for word in ("--guard", f"{key}={value}")]
                line = ("record", "camp", need["arm"], str(seed), str(score), *given)
                status, said = answer(capsys, *line)
    assert (status, said["outcome"]) == (10, "discard")
    length = said["guards"][0]
    assert (length["metric"], length["outcome"], length["margin"]) == ("length", "fails", 10)
    assert length["larger_is_better"] is False
    assert said["history"][0]["guards"] == said["guards"]
    assert said["baseline"]["guards"]["memory"] == 12
    main(["gate", "log", "camp", "--search", "worse on length"])
    assert "longer answers" in capsys.readouterr().out


SPACE = """
name: toy
program: {command: [python, toy.py, "{lr}", "{seed}"], defaults: {lr: 0.1}}
objective: {metric: score, worthwhile: 0.1, guards: ["length:10"]}
baselines: [{}]
search: {configurations: 0}
"""


@pytest.mark.parametrize(
    ("guard", "code", "names"),
    [
        ("step:1", "invalid-objective", ("'step' cannot be a guard", "--guard")),
        ("score:1", "guarded-score", ("score", "--guard")),
        ("length:20", "named-twice", ("--guard", "toy.yaml:4", "objective.guards")),
    ],
)
def test_guards_are_checked_where_they_are_typed(tmp_path, monkeypatch, guard, code, names):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text("")
    (tmp_path / "toy.yaml").write_text(SPACE)
    with refused(code, ConfigError, names=names) as told:
        gate.start("camp", space="./toy.yaml", guard=[guard])
    assert told.value.where == "--guard"
    assert not (tmp_path / "camp").exists()
    started = gate.start("camp", space="./toy.yaml", guard=["memory:0.5:min"])
    assert started.campaign.spec.guards == ["length:10", "memory:0.5:min"]


def test_a_score_is_no_guard_of_itself(tmp_path):
    with refused("guarded-score", ConfigError, names=("acc", "--guard")):
        gate.start(tmp_path / "camp", metric="acc", worthwhile=0.1, guard=["acc:1"])
    (tmp_path / "toy.yaml").write_text(SPACE.replace("length:10", "score:1"))
    with refused("guarded-score", ConfigError, names=("score", "objective.guards")):
        gate.start(tmp_path / "camp", space=str(tmp_path / "toy.yaml"))
