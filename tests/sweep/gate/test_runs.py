"""Running what a campaign needs, with the trainings replaced by a table of results."""

import json
import shutil
import subprocess

import pytest

from loptune.errors import ConfigError, MissingError, NameInUseError
from loptune.run_names import lock_folder
from sweep.commands import gate
from sweep.gate import runs
from sweep.gate.batch import (
    Batch,
    BatchResults,
    batch_name,
    batch_space,
    complete_settings,
    run_batch,
)
from sweep.gate.campaign import PROGRAM, Campaign, CampaignSpec, Finished, start_campaign
from sweep.gate.runs import run_until_decided
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep

SPACE = """
name: toy
program: {command: [python, train.py], defaults: {lr: 0.1, batch: 8}}
baselines: [{}]
search: {configurations: 0}
"""
TRAINER = """
name: toy
trainer: tiny_kk
baselines: [{}]
search: {configurations: 0}
"""
FAILS = {3}  # seeds on which every arm fails


class Machine:
    """Runs batches from a table. Runs are counted, and a batch that has ended is not run again."""

    def __init__(self, kills=()):
        self.trained = []  # (arm, seed), in order
        self.ended = {}
        self.kills = list(kills)  # seeds whose next run the machine kills

    def run_batch(self, folder, batch, place, *, checked_out=False, parallel=None):
        arm = batch.name.split("-seeds-")[0]
        both = []
        for number, settings in enumerate((batch.settings, *batch.further)):
            results = self.ended.setdefault((batch.name, number), BatchResults({}, {}, {}))
            both.append(self.run_one(arm, batch.seeds, settings, results))
        return both

    def run_one(self, arm, seeds, settings, results):
        results.killed.clear()
        for seed in seeds:
            if seed in results.scores or seed in results.failed:
                continue
            self.trained.append((arm, seed))
            if seed in self.kills:
                self.kills.remove(seed)
                results.killed[seed] = "the command was ended by SIGKILL"
            elif seed in FAILS:
                results.failed[seed] = "the command ended with exit code 1"
            else:
                gain = 0.5 * (settings.get("lr") == 0.2)
                results.scores[seed] = gain + 0.01 * (seed * 7 % 5)
        return results


@pytest.fixture
def campaign(tmp_path):
    spec = CampaignSpec(space="space.yaml", settings={"lr": 0.1}, worthwhile=0.05, first_seeds=5)
    campaign = start_campaign(tmp_path / "camp", spec)
    (campaign.folder / PROGRAM).write_text("{}")
    return campaign


def decide(folder, machine, monkeypatch):
    monkeypatch.setattr(runs, "run_batch", machine.run_batch)
    with Campaign(folder).change() as campaign:
        if not campaign.proposals and campaign.verdict().outcome == "ready":
            campaign.propose({"lr": 0.2})
    return run_until_decided(folder)


def test_a_campaign_killed_at_any_byte_of_its_events_continues_and_trains_nothing_twice(
    campaign, monkeypatch, tmp_path
):
    undisturbed = Machine()
    for expected in ("ready", "keep"):
        assert decide(campaign.folder, undisturbed, monkeypatch).outcome == expected
    events = (campaign.folder / "events.jsonl").read_bytes()
    start = events.index(b"\n") + 1
    for length in range(start, len(events), 37):
        folder = tmp_path / f"killed-{length}"
        shutil.copytree(campaign.folder, folder)
        (folder / "events.jsonl").write_bytes(events[:length])
        machine = Machine()
        machine.ended = undisturbed.ended  # the sweeps that had ended when it was killed
        if decide(folder, machine, monkeypatch).outcome == "ready":
            assert decide(folder, machine, monkeypatch).outcome == "keep"
        assert machine.trained == []
        assert Campaign(folder).kept == [1]
        seeds = [
            (part["arm"], seed)
            for record in map(json.loads, (folder / "events.jsonl").read_text().splitlines())
            if record["event"] == "batch"
            for part in record["parts"]
            for seed, _, _ in part["results"]
        ]
        assert len(seeds) == len(set(seeds))


SWARM = [{"lr": 0.2}, *({"lr": 0.1 + 0.001 * number} for number in range(1, 8))]


def test_eight_open_proposals_killed_at_any_byte_end_as_undisturbed(
    campaign, monkeypatch, tmp_path
):
    machine = Machine()
    monkeypatch.setattr(runs, "run_batch", machine.run_batch)
    (campaign.folder / PROGRAM).write_text(SPACE)
    run_until_decided(campaign.folder)
    with Campaign(campaign.folder).change() as changed:
        for settings in SWARM:
            changed.propose(settings)
    start = len((campaign.folder / "events.jsonl").read_bytes())
    run_until_decided(campaign.folder)
    trained = len(machine.trained)
    events = (campaign.folder / "events.jsonl").read_bytes()
    outcomes = [proposal.decision["outcome"] for proposal in Campaign(campaign.folder).proposals]
    assert outcomes == ["keep", *["discard"] * 7]
    for length in range(start, len(events), 1201):
        folder = tmp_path / f"killed-{length}"
        shutil.copytree(campaign.folder, folder)
        (folder / "events.jsonl").write_bytes(events[:length])
        run_until_decided(folder)
        assert (folder / "events.jsonl").read_bytes() == events
    assert len(machine.trained) == trained  # nothing ran twice


def test_results_of_a_batch_are_one_event_and_recording_them_again_changes_nothing(campaign):
    scores, failed = {0: 0.1, 1: 0.2}, {2: "exit code 1"}
    results = Finished(arm="baseline", scores=scores, failed=failed)
    with campaign.change() as current:
        current.record_batch([results])
        current.record_batch([results])
    lines = (campaign.folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["baseline", "batch"]
    baseline = Campaign(campaign.folder).baseline
    assert (baseline.scores, baseline.failed) == ({0: 0.1, 1: 0.2}, {2: "exit code 1"})


def test_a_run_that_the_machine_killed_is_run_again_and_decides_nothing(campaign, monkeypatch):
    machine = Machine()
    decide(campaign.folder, machine, monkeypatch)
    machine.kills = [0]
    with refused("run-killed", MissingError, names=("SIGKILL",)):
        decide(campaign.folder, machine, monkeypatch)
    assert Campaign(campaign.folder).open is not None
    assert decide(campaign.folder, machine, monkeypatch).outcome == "keep"
    assert machine.trained.count(("proposal-1", 0)) == 2


class Busy(Machine):
    """A machine during whose first batch of proposals others use the campaign."""

    def __init__(self, meanwhile):
        super().__init__()
        self.meanwhile = meanwhile

    def run_batch(self, folder, batch, place, **options):
        results = super().run_batch(folder, batch, place, **options)
        if self.meanwhile and batch.name.startswith("proposal"):
            self.meanwhile.pop(0)(folder)
        return results


def propose(**settings):
    def change(folder):
        with Campaign(folder).change() as changed:
            changed.propose(settings)

    return change


def record_by_hand(folder):
    assert Campaign(folder).verdict(1).outcome == "more"  # readable while it runs
    with Campaign(folder).change() as changed:
        changed.record("proposal", 0, 0.9, proposal=1)
        changed.decide()


def withdraw(folder):
    with Campaign(folder).change() as changed:
        changed.withdraw(1)


def run_too(folder):
    with refused("name-held", NameInUseError, names=("camp", "proposed")):
        run_until_decided(folder)


def test_others_may_use_a_campaign_while_its_runs_train(campaign, monkeypatch):
    machine = Busy([record_by_hand, propose(lr=0.3), run_too])
    monkeypatch.setattr(runs, "run_batch", machine.run_batch)
    decide(campaign.folder, machine, monkeypatch)
    last = decide(campaign.folder, machine, monkeypatch)
    assert (last.proposal, last.outcome) == (2, "discard")
    ended = Campaign(campaign.folder)
    assert machine.meanwhile == []
    assert [each.decision["outcome"] for each in ended.proposals] == ["keep", "discard"]
    assert ended.proposals[0].scores[0] == 0.9  # what was recorded first stays


def test_a_proposal_is_answered_with_its_own_decision_if_another_is_decided_last(
    campaign, monkeypatch
):
    machine = Busy([propose(lr=0.3)])
    decide(campaign.folder, machine, monkeypatch)
    monkeypatch.setattr("sweep.commands.gate._check_program", lambda *_, **__: None)
    (campaign.folder / PROGRAM).write_text(SPACE)
    answered = gate.propose(campaign.folder, ["lr=0.2"], run=True)
    assert (answered.verdict.proposal, answered.outcome) == (1, "keep")
    ended = answered.campaign
    assert [each.decision["outcome"] for each in ended.proposals] == ["keep", "discard"]
    told = gate.fields(answered)
    recorded = ended.proposals[0].decision
    for key in ("reason", "gain", "low", "high", "level", "seeds"):
        assert told[key] == recorded[key]


def test_a_proposal_to_a_campaign_that_another_process_runs_is_answered_by_number(
    campaign, monkeypatch
):
    decide(campaign.folder, Machine(), monkeypatch)
    propose(lr=0.3)(campaign.folder)
    (campaign.folder / PROGRAM).write_text(SPACE)
    with lock_folder(campaign.folder / runs.RUNNING):
        answered = gate.propose(campaign.folder, ["lr=0.2"], run=True)
    assert (answered.verdict.proposal, answered.outcome) == (2, "more")


def test_a_recheck_is_answered_with_its_own_decision(campaign, monkeypatch):
    machine = Machine()
    for expected in ("ready", "keep"):
        assert decide(campaign.folder, machine, monkeypatch).outcome == expected

    def decided_by_another(folder):
        run_until_decided(folder)
        propose(lr=0.1)(folder)
        return run_until_decided(folder)

    monkeypatch.setattr("sweep.gate.runs.run_until_decided", decided_by_another)
    answered = gate.recheck(campaign.folder, run=True)
    assert answered.campaign.proposals[1].decision["outcome"] == "discard"
    assert (answered.outcome, answered.verdict.proposal) == ("confirmed", None)


def test_runs_of_a_proposal_that_was_withdrawn_meanwhile_count_for_nothing(campaign, monkeypatch):
    machine = Busy([withdraw])
    decide(campaign.folder, machine, monkeypatch)
    assert decide(campaign.folder, machine, monkeypatch).outcome == "ready"
    (proposal,) = Campaign(campaign.folder).proposals
    assert (proposal.decision["reason"], proposal.scores) == ("withdrawn", {})


def test_batches_of_other_seeds_have_other_names():
    names = {batch_name("proposal-1", seeds) for seeds in ((0, 1, 2), (0, 2), (1, 2), (0, 1, 3, 2))}
    assert len(names) == 4
    many = {batch_name("baseline-0", (*range(30), last)) for last in (30, 31)}
    assert len(many) == 2 and all(len(name) <= 64 for name in many)


def test_open_proposals_of_one_program_run_as_one_sweep(campaign, monkeypatch):
    machine = Machine()
    monkeypatch.setattr(runs, "run_batch", machine.run_batch)
    (campaign.folder / PROGRAM).write_text(SPACE)
    run_until_decided(campaign.folder)
    with Campaign(campaign.folder).change() as changed:
        for settings in ({"lr": 0.05}, {"lr": 0.2}, {"batch": 16}, {"batch": 16}):
            changed.propose(settings)
    machine.trained.clear()
    run_until_decided(campaign.folder)
    ended = Campaign(campaign.folder)
    assert ended.open_proposals == []
    assert ended.kept == [2]
    assert machine.trained[:3] == [("proposals-1-2-3", 0)] * 3
    assert ("proposal-4", 0) in machine.trained  # equal to the third, so not in one sweep with it


def test_proposals_that_one_sweep_may_not_vary_run_one_by_one(tmp_path, monkeypatch):
    spec = CampaignSpec(space="space.yaml", worthwhile=0.05, first_seeds=5)
    campaign = start_campaign(tmp_path / "camp", spec)
    (campaign.folder / PROGRAM).write_text(TRAINER)
    monkeypatch.setattr(runs, "run_batch", Machine().run_batch)
    run_until_decided(campaign.folder)
    changes = ({"optim.lr": 1e-4}, {"evaluation.every_steps": 5}, {"optim.lr": 1e-3})
    for settings in changes:
        one = Batch(name="one", settings=settings, command=None, seeds=(0,))
        batch_space(campaign.folder, one)  # accepted
    assert complete_settings(campaign.folder, changes[:2]) is not None
    with campaign.change() as changed:
        for settings in changes:
            changed.propose(settings)
        needs = changed.verdict().needs
        assert [need.proposal for need in needs] == [1, 2, 3]
        assert [need.proposal for need in runs._next_batch(changed, needs)[0]] == [1, 3]
        assert [need.proposal for need in runs._next_batch(changed, needs[1:])[0]] == [2]


def test_configurations_are_completed_for_one_sweep(tmp_path):
    (tmp_path / PROGRAM).write_text(SPACE)
    assert complete_settings(tmp_path, [{"lr": 0.2}, {"batch": 16}]) == [
        {"batch": 8, "lr": 0.2},
        {"batch": 16, "lr": 0.1},
    ]
    assert complete_settings(tmp_path, [{"lr": 0.1}, {"batch": 8}]) is None  # equal
    assert complete_settings(tmp_path, [{"lr": 0.1}, {"unknown": 8}]) is None
    (tmp_path / PROGRAM).write_text(TRAINER)
    arms = [{"optim.lr": 0.2}, {"optim.weight_decay": 0.5}]
    lr, decay = complete_settings(tmp_path, arms)
    assert (lr["optim.lr"], decay["optim.weight_decay"]) == (0.2, 0.5)


@pytest.mark.parametrize(
    ("program", "arms"),
    [
        ("SPACE", [{"lr": 0.2, "batch": 8}, {"lr": 0.3, "batch": 8}]),
        ("TRAINER", [{"optim.lr": 1e-3}, {"optim.lr": 1e-4}]),
    ],
)
def test_the_space_of_a_batch_has_its_configurations_and_no_search(tmp_path, program, arms):
    text = {"SPACE": SPACE, "TRAINER": TRAINER}[program]
    (tmp_path / PROGRAM).write_text(text)
    batch = Batch(name="b", settings=arms[0], command=None, seeds=(4, 7), further=(arms[1],))
    space = batch_space(tmp_path, batch)
    key = next(iter(arms[0]))
    assert space.baselines == [{key: arms[0][key]}, {key: arms[1][key]}]
    assert (space.search.configurations, space.seeds) == (0, [4, 7])


def test_a_batch_that_was_killed_before_its_first_trial_has_not_ended(campaign, monkeypatch):
    """Its sweep's folder is there, but no trial is: that is no result, and it is resumed."""
    sweep = write_sweep(campaign.folder / "runs", "batch")
    planned = sweep.planned
    for path in (campaign.folder / "runs" / "batch").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "space.lock.yaml":
            path.unlink()
    lines = []

    def killed(line, **_):
        lines.append(line)
        return subprocess.CompletedProcess(line, 1)

    monkeypatch.setattr("sweep.gate.batch.subprocess.run", killed)
    one = Batch(name="batch", settings={}, command=None, seeds=tuple(sweep.spec.seeds), further=())
    with refused("batch-unfinished", ConfigError, names=(f"0 of {planned}",)):
        run_batch(campaign.folder, one, campaign.folder)
    assert lines[0][lines[0].index("sweep") + 1 :][:2] == ["resume", "batch"]
