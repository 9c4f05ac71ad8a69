"""Running what a campaign needs, with the trainings replaced by a table of results."""

import contextlib
import json
import re
import shlex
import shutil

import pytest

from loptune.errors import ConfigError, MissingError, NameInUseError
from loptune.run_names import lock_folder
from sweep.cli import main
from sweep.commands import gate
from sweep.driver.pool import _fields
from sweep.gate import runs
from sweep.gate.batch import Batch, BatchResults, batch_name, batch_space, read_results, unfinished
from sweep.gate.campaign import PROGRAM, Campaign, CampaignSpec, Finished, start_campaign
from sweep.gate.pool import _raised
from sweep.gate.runs import run_until_decided
from sweep.search.trial_report import Failure
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

    def __init__(self, kills=(), breaks=()):
        self.trained = []  # (arm, seed), in order
        self.ended = {}
        self.kills = list(kills)  # seeds whose next run the machine kills
        self.breaks = breaks  # batches that cannot run
        self.pools = 0
        self.rounds = []  # numbers of batches that were running together
        self.waiting = {}

    def pool(self, folder, *, resume, parallel=None):
        self.pools += 1
        self.waiting = {}
        return contextlib.nullcontext(self)

    def submit(self, batch, place):
        self.waiting[batch.name] = batch

    def wait(self, timeout):
        waiting = self.waiting
        self.waiting = {}
        self.rounds.append(len(waiting))
        return {name: self.results(batch) for name, batch in waiting.items()}

    def results(self, batch):
        arm = batch.name.split("-seeds-")[0]
        if arm in self.breaks:
            return ConfigError("no such file", code="no-file")
        results = self.ended.setdefault(batch.name, BatchResults({}, {}, {}))
        results.killed.clear()
        for seed in batch.seeds:
            if seed in results.scores or seed in results.failed:
                continue
            self.trained.append((arm, seed))
            if seed in self.kills:
                self.kills.remove(seed)
                results.killed[seed] = "the command was killed by SIGKILL"
            elif seed in FAILS:
                results.failed[seed] = "the command ended with exit code 1"
            else:
                gain = 0.5 * (batch.settings.get("lr") == 0.2)
                results.scores[seed] = gain + 0.01 * (seed * 7 % 5)
        return results


@pytest.fixture
def campaign(tmp_path):
    spec = CampaignSpec(space="space.yaml", settings={"lr": 0.1}, worthwhile=0.05, first_seeds=5)
    campaign = start_campaign(tmp_path / "camp", spec)
    (campaign.folder / PROGRAM).write_text("{}")
    return campaign


def decide(folder, machine, monkeypatch):
    monkeypatch.setattr(runs, "RunPool", machine.pool)
    with Campaign.read(folder).change() as campaign:
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
        assert Campaign.read(folder).kept == [1]
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
    monkeypatch.setattr(runs, "RunPool", machine.pool)
    (campaign.folder / PROGRAM).write_text(SPACE)
    run_until_decided(campaign.folder)
    with Campaign.read(campaign.folder).change() as changed:
        for settings in SWARM:
            changed.propose(settings)
    start = len((campaign.folder / "events.jsonl").read_bytes())
    run_until_decided(campaign.folder)
    trained = len(machine.trained)
    events = (campaign.folder / "events.jsonl").read_bytes()
    outcomes = [
        proposal.decision["outcome"] for proposal in Campaign.read(campaign.folder).proposals
    ]
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
    baseline = Campaign.read(campaign.folder).baseline
    assert (baseline.scores, baseline.failed) == ({0: 0.1, 1: 0.2}, {2: "exit code 1"})


def test_a_run_that_the_machine_killed_is_run_again_and_decides_nothing(campaign, monkeypatch):
    machine = Machine()
    decide(campaign.folder, machine, monkeypatch)
    machine.kills = [0]
    with refused("run-killed", MissingError, names=("SIGKILL",)):
        decide(campaign.folder, machine, monkeypatch)
    assert Campaign.read(campaign.folder).open is not None
    assert decide(campaign.folder, machine, monkeypatch).outcome == "keep"
    assert machine.trained.count(("proposal-1", 0)) == 2


def test_all_seeds_whose_runs_the_machine_killed_are_named(campaign, monkeypatch):
    with refused("run-killed", MissingError, names=("seeds: 0, 2",)) as caught:
        decide(campaign.folder, Machine(kills=[2, 0] * 3), monkeypatch)
    assert str(caught.value).count("SIGKILL") == 1  # their common reason


class Busy(Machine):
    """A machine during whose first batch of proposals others use the campaign."""

    def __init__(self, meanwhile):
        super().__init__()
        self.meanwhile = meanwhile

    def pool(self, folder, **options):
        self.folder = folder
        return super().pool(folder, **options)

    def wait(self, timeout):
        ended = super().wait(timeout)
        if self.meanwhile and any(name.startswith("proposal") for name in ended):
            self.meanwhile.pop(0)(self.folder)
        return ended


def propose(**settings):
    def change(folder):
        with Campaign.read(folder).change() as changed:
            changed.propose(settings)

    return change


def record_by_hand(folder):
    assert Campaign.read(folder).verdict(1).outcome == "more"  # readable while it runs
    with Campaign.read(folder).change() as changed:
        changed.record("proposal", 0, 0.9, proposal=1)
        changed.decide()


def withdraw(folder):
    with Campaign.read(folder).change() as changed:
        changed.withdraw(1)


def run_too(folder):
    with refused("name-held", NameInUseError, names=("camp", "proposed")):
        run_until_decided(folder)


def test_others_may_use_a_campaign_while_its_runs_train(campaign, monkeypatch):
    machine = Busy([record_by_hand, propose(lr=0.3), run_too])
    monkeypatch.setattr(runs, "RunPool", machine.pool)
    decide(campaign.folder, machine, monkeypatch)
    last = decide(campaign.folder, machine, monkeypatch)
    assert (last.proposal, last.outcome) == (2, "discard")
    ended = Campaign.read(campaign.folder)
    assert machine.meanwhile == []
    assert [each.decision["outcome"] for each in ended.proposals] == ["keep", "discard"]
    assert ended.proposals[0].scores[0] == 0.9  # what was recorded first stays


def test_a_proposal_is_answered_with_its_own_decision_if_another_is_decided_last(
    campaign, monkeypatch
):
    machine = Busy([propose(lr=0.3)])
    decide(campaign.folder, machine, monkeypatch)
    monkeypatch.setattr("sweep.gate.proposed_change.check_program", lambda *_, **__: None)
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
    (proposal,) = Campaign.read(campaign.folder).proposals
    assert (proposal.decision["reason"], proposal.scores) == ("withdrawn", {})


def test_batches_of_other_seeds_have_other_names():
    names = {batch_name("proposal-1", seeds) for seeds in ((0, 1, 2), (0, 2), (1, 2), (0, 1, 3, 2))}
    assert len(names) == 4
    many = {batch_name("baseline-0", (*range(30), last)) for last in (30, 31)}
    assert len(many) == 2 and all(len(name) <= 64 for name in many)


def test_what_all_open_proposals_need_runs_at_the_same_time(campaign, monkeypatch):
    machine = Machine()
    monkeypatch.setattr(runs, "RunPool", machine.pool)
    with Campaign.read(campaign.folder).change() as changed:
        for settings in SWARM:
            changed.propose(settings)
    (campaign.folder / PROGRAM).write_text(SPACE)
    run_until_decided(campaign.folder)
    assert machine.pools == 1
    assert machine.rounds[0] == 9  # the baseline and eight proposals
    ended = Campaign.read(campaign.folder)
    assert (ended.open_proposals, ended.kept) == ([], [1])


class Open(Machine):
    """A machine on which others propose while the first proposal runs."""

    def __init__(self, folder, changes):
        super().__init__()
        self.folder = folder
        self.changes = changes

    def wait(self, timeout):
        is_first = not self.rounds
        if is_first:
            for settings in self.changes:
                propose(**settings)(self.folder)
            self.rounds.append(len(self.waiting))
            return {}
        return super().wait(timeout)


def test_a_proposal_joins_the_runs_that_are_under_way(campaign, monkeypatch):
    decide(campaign.folder, Machine(), monkeypatch)
    machine = Open(campaign.folder, [{"lr": 0.3}, {"lr": 0.4}])
    decide(campaign.folder, machine, monkeypatch)
    assert machine.rounds[:2] == [1, 3]
    ended = Campaign.read(campaign.folder)
    assert [each.decision["outcome"] for each in ended.proposals] == ["keep", *["discard"] * 2]


class CheckingOut(Open):
    """A machine on which others propose while the runs of the first proposal are prepared."""

    def submit(self, batch, place):
        super().submit(batch, place)
        while self.changes:
            propose(**self.changes.pop())(self.folder)


def test_a_proposal_that_is_made_while_a_round_starts_joins_it(campaign, monkeypatch):
    decide(campaign.folder, Machine(), monkeypatch)
    machine = CheckingOut(campaign.folder, [{"lr": 0.3}])
    decide(campaign.folder, machine, monkeypatch)
    assert machine.rounds[:2] == [1, 2]
    ended = Campaign.read(campaign.folder)
    assert [each.decision["outcome"] for each in ended.proposals] == ["keep", "discard"]


def test_a_proposal_that_fails_where_its_baseline_fails_is_not_discarded(campaign, monkeypatch):
    monkeypatch.setattr(f"{__name__}.FAILS", {0, 3})
    with Campaign.read(campaign.folder).change() as changed:
        changed.propose({"lr": 0.2})
    assert decide(campaign.folder, Machine(), monkeypatch).outcome == "keep"


@pytest.mark.parametrize("fault", ["breaks", "kills"])
def test_a_proposal_that_cannot_run_keeps_no_other_from_being_decided(campaign, monkeypatch, fault):
    machine = Machine()
    decide(campaign.folder, machine, monkeypatch)
    with Campaign.read(campaign.folder).change() as changed:
        changed.propose({"lr": 0.3})
        changed.propose({"lr": 0.2})
    (campaign.folder / PROGRAM).write_text(SPACE)
    code, kind = "no-file", ConfigError
    machine.breaks = ["proposal-1"]
    if fault == "kills":
        machine.breaks, machine.kills = (), [0]
        code, kind = "run-killed", MissingError
    with refused(code, kind) as caught:
        decide(campaign.folder, machine, monkeypatch)
    ended = Campaign.read(campaign.folder)
    assert ([each.number for each in ended.open_proposals], ended.kept) == ([1], [2])
    if fault != "kills":
        [line] = re.findall(r"`sweep (gate withdraw .*?)`", caught.value.hint)
        main(shlex.split(line))
        assert Campaign.read(campaign.folder).open_proposals == []


class Joined(Machine):
    """A machine on which another proposal is made while the second batch of proposal 2 runs."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.submitted = []

    def submit(self, batch, place):
        super().submit(batch, place)
        self.submitted.append(batch.name.split("-seeds-")[0])

    def wait(self, timeout):
        if self.submitted.count("proposal-2") == 2 and "proposal-3" not in self.submitted:
            propose(lr=0.4)(self.folder)
            return {}
        return super().wait(timeout)


def test_a_batch_that_could_not_end_does_not_start_again_with_a_proposal_that_joins(
    campaign, monkeypatch
):
    decide(campaign.folder, Machine(), monkeypatch)
    propose(lr=0.3)(campaign.folder)
    propose(lr=0.2)(campaign.folder)
    machine = Joined(campaign.folder)
    machine.breaks = ["proposal-1"]
    with refused("no-file", ConfigError):
        decide(campaign.folder, machine, monkeypatch)
    assert "proposal-3" in machine.submitted
    assert machine.submitted.count("proposal-1") == 1
    assert Campaign.read(campaign.folder).kept == [2]


def test_the_error_of_a_batch_that_ran_in_the_end_is_not_raised(campaign, monkeypatch):
    """The machine kills a run of the baseline, and the next round runs it."""
    propose(lr=0.3)(campaign.folder)
    machine = Machine(kills=[1])
    machine.breaks = ["proposal-1"]
    with refused("no-file", ConfigError):
        decide(campaign.folder, machine, monkeypatch)
    assert len(Campaign.read(campaign.folder).baseline.scores) >= 5


def test_a_proposal_is_not_discarded_for_a_failure_while_its_baseline_has_not_run(
    campaign, monkeypatch
):
    """If the machine kills the baseline's run of the round, it may still fail on the seed."""
    with Campaign.read(campaign.folder).change() as changed:
        changed.propose({"lr": 0.2})
    monkeypatch.setattr(f"{__name__}.FAILS", {0})
    machine = Machine(kills=[0])
    assert decide(campaign.folder, machine, monkeypatch).outcome == "keep"


@pytest.mark.parametrize(
    ("program", "settings"), [("SPACE", {"lr": 0.2, "batch": 8}), ("TRAINER", {"optim.lr": 1e-3})]
)
def test_the_space_of_a_batch_has_its_configuration_and_no_search(tmp_path, program, settings):
    text = {"SPACE": SPACE, "TRAINER": TRAINER}[program]
    (tmp_path / PROGRAM).write_text(text)
    space = batch_space(tmp_path, Batch(name="b", settings=settings, command=None, seeds=(4, 7)))
    assert space.program.values({}, list(settings)) == settings
    assert (space.baselines, space.search.configurations, space.seeds) == ([{}], 0, [4, 7])


def test_a_run_that_logs_no_score_has_failed_and_was_not_killed_by_the_machine(tmp_path):
    failures = {1: Failure("logged no acc", by_settings=True), 2: Failure("ended by SIGKILL")}
    write_sweep(tmp_path, "batch", {0: {0: 0.5, **failures}}, seeds=[0, 1, 2])
    results = read_results(tmp_path, "batch")
    assert (set(results.failed), set(results.killed)) == ({1}, {2})


def test_a_batch_that_was_killed_before_its_first_trial_has_not_ended(campaign, monkeypatch):
    """Its sweep's folder is there, but no trial is: that is no result, and it is resumed."""
    sweep = write_sweep(campaign.folder / "runs", "batch")
    planned = sweep.planned
    for path in (campaign.folder / "runs" / "batch").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "space.lock.yaml":
            path.unlink()
    assert f"0 of {planned}" in unfinished(campaign.folder / "runs", "batch")
    assert unfinished(campaign.folder / "runs", "another")


def test_an_error_of_a_batch_keeps_all_of_its_parts():
    error = MissingError("no file", "data", "add it", "data.train", code="no-file")
    again = _raised(_fields(error))
    assert type(again) is MissingError and vars(again) == vars(error)
