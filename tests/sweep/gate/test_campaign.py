"""Campaigns: the order of runs, what is refused, and what survives."""

import json
import random
from pathlib import Path

import pytest

from dashboards.statistics import gate
from loptune.errors import ConfigError, MissingError, NameInUseError, StorageError
from sweep.gate import state
from sweep.gate.campaign import Campaign, CampaignSpec, start_campaign
from sweep.gate.state import UnknownEventError
from sweep.search.event_log import with_checksum
from tests.refusals import refused

SPEC = CampaignSpec(worthwhile=0.1, first_seeds=4, most_seeds=16)


@pytest.fixture
def folder(tmp_path):
    start_campaign(tmp_path / "camp", SPEC)
    return tmp_path / "camp"


def noisy(seed, mean, salt=""):
    return mean + random.Random(f"{seed}{salt}").gauss(0, 0.05)


def measure_baseline(campaign, mean=0.5):
    for need in campaign.verdict().needs:
        assert need.arm == "baseline"
        for seed in need.seeds:
            campaign.record("baseline", seed, noisy(seed, mean))


def run_proposal(campaign, mean):
    """Record what is asked for until the proposal is decided; return the verdict and the runs."""
    runs = 0
    while True:
        verdict = campaign.decide()
        if verdict.outcome != "more":
            return verdict, runs
        for need in verdict.needs:
            for seed in need.seeds:
                true = mean if need.arm == "proposal" else 0.5
                campaign.record(need.arm, seed, noisy(seed, true, need.arm))
                runs += need.arm == "proposal"


def test_the_noise_of_the_baseline_comes_first(folder):
    with Campaign.read(folder).change() as campaign:
        verdict = campaign.verdict()
        assert (verdict.outcome, verdict.needs[0].seeds) == ("more", (0, 1, 2, 3))
        measure_baseline(campaign)
        assert campaign.verdict().outcome == "ready"


def test_a_proposal_starts_with_one_seed_and_a_useless_one_ends_early(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({}, note="worse")
        (need,) = campaign.verdict().needs
        assert (need.arm, need.seeds) == ("proposal", (0,))
        verdict, runs = run_proposal(campaign, 0.3)
        assert (verdict.outcome, runs) == ("discard", 1)
        assert "its gain is below 0" in verdict.reason


def test_a_kept_proposal_is_the_next_baseline_on_fresh_seeds(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({"lr": 2})
        verdict, runs = run_proposal(campaign, 1.0)
        assert verdict.outcome == "keep"
        assert runs >= gate.FIRST_CLAIM
        assert campaign.kept == [1]
        assert campaign.baseline.settings == {"lr": 2}
        assert not campaign.baseline.scores
        # seeds from 1000 on: the baseline ran again before the change was kept
        assert campaign.verdict().needs[0].seeds == (2000, 2001, 2002, 2003)


def test_smaller_scores_are_better_in_mode_min(tmp_path):
    spec = SPEC.model_copy(update={"mode": "min"})
    start_campaign(tmp_path / "camp", spec)
    with Campaign.read(tmp_path / "camp").change() as campaign:
        measure_baseline(campaign)
        campaign.propose({}, note="lower loss")
        verdict, _ = run_proposal(campaign, 0.1)
        assert verdict.outcome == "keep"
        assert verdict.answer is not None
        assert verdict.answer.difference.gain > 0


def test_a_campaign_read_again_says_the_same(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({"lr": 2}, note="twice")
        run_proposal(campaign, 1.0)
        before = campaign.verdict(), campaign.model(), campaign.baseline
    again = Campaign.read(folder)
    assert (again.verdict(), again.model(), again.baseline) == before


def test_an_interrupted_proposal_goes_on_where_it_was(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({}, note="open")
        campaign.record("proposal", 0, noisy(0, 0.6))
    with Campaign.read(folder).change() as campaign:
        assert campaign.open is not None
        assert list(campaign.open.scores) == [0]
        run_proposal(campaign, 0.6)
        assert campaign.open is None


def test_a_failed_run_discards_the_proposal_with_its_reason(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({}, note="diverges")
        campaign.record("proposal", 0, float("nan"))
        verdict = campaign.decide()
        assert verdict.outcome == "discard"
        assert "nan" in verdict.reason
        assert campaign.open is None


def test_a_seed_on_which_the_baseline_failed_is_replaced(folder):
    with Campaign.read(folder).change() as campaign:
        campaign.record("baseline", 0, None, "no memory")
        assert campaign.verdict().needs[0].seeds == (1, 2, 3, 4)
        measure_baseline(campaign)
        campaign.propose({}, note="next")
        assert campaign.verdict().needs[0].seeds == (1,)


def test_a_seed_on_which_only_the_baseline_fails_is_replaced_for_both(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({}, note="never fails")
        while (verdict := campaign.decide()).outcome == "more":
            for need in reversed(verdict.needs):
                for seed in need.seeds:
                    failed = need.arm == "baseline" and seed == 5
                    mean = 1.0 if need.arm == "proposal" else 0.5
                    campaign.record(need.arm, seed, None if failed else noisy(seed, mean, need.arm))
        assert verdict.outcome == "keep"
        assert campaign.baselines[0].failed == {5: ""}
        proposal = campaign.proposals[0]
        assert 5 in proposal.scores
        assert verdict.answer.difference.seeds == len(proposal.scores) - 1


def test_a_baseline_that_always_fails_ends_the_campaign(folder):
    with Campaign.read(folder).change() as campaign:
        for seed in range(4):
            campaign.record("baseline", seed, None, "no memory")
        with refused("baseline-fails", ConfigError) as caught:
            campaign.verdict()
        assert "no memory" in caught.value.hint


def test_equal_scores_of_the_baseline_are_refused(folder):
    with Campaign.read(folder).change() as campaign:
        for seed in range(4):
            campaign.record("baseline", seed, 0.5)
        with refused("seed-without-effect", ConfigError):
            campaign.verdict()


def test_a_proposal_can_be_withdrawn(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({"lr": 2})
        campaign.withdraw()
        assert campaign.propose({"lr": 3}).number == 2
        campaign.withdraw()
        with refused("no-open-proposal", ConfigError):
            campaign.withdraw()


def record_needed(campaign, scores):
    """Record what the open proposals need, with ``scores(arm, seed, proposal)``, until all are
    decided; return the arms and seeds that ran.
    """
    ran = []
    while campaign.open_proposals:
        for need in campaign.verdict().needs:
            for seed in need.seeds:
                score = scores(need.arm, seed, need.proposal)
                campaign.record(need.arm, seed, score, proposal=need.proposal)
                ran.append((need.arm, seed))
        campaign.decide()
    return ran


def test_open_proposals_are_decided_side_by_side(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        for lr in (2, 3, 4):
            campaign.propose({"lr": lr})
        needs = campaign.verdict().needs
        assert [(need.arm, need.seeds, need.proposal) for need in needs] == [
            ("proposal", (0,), 1),
            ("proposal", (0,), 2),
            ("proposal", (0,), 3),
        ]
        with refused("which-proposal", ConfigError):
            campaign.record("proposal", 0, 0.6)
        campaign.withdraw(2)
        with refused("proposal-open", ConfigError):
            campaign.recheck()
        record_needed(campaign, lambda arm, seed, number: noisy(seed, 0.2 if number else 0.5, arm))
        outcomes = [proposal.decision["outcome"] for proposal in campaign.proposals]
        assert outcomes == ["discard", "discard", "discard"]


def test_a_keep_that_meets_another_keep_is_compared_with_it(folder):
    # Proposal 1 adds 1.0. Proposal 2 adds 1.0 too, but nothing on top of proposal 1.
    def score(arm, seed, number):
        if number is None:
            return noisy(seed, 0.5 + (campaign.baseline_of(seed).settings.get("lr") == 2), arm)
        settings = campaign.proposals[number - 1].settings
        return noisy(seed, 0.5 + bool(settings), f"{arm}{number}")

    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({"lr": 2})
        campaign.propose({"batch": 8})
        record_needed(campaign, score)
        assert campaign.kept == [1]
        first, second = campaign.proposals
        assert (first.baseline, second.settings) == (0, {"lr": 2, "batch": 8})
        assert campaign.baselines[second.baseline].settings == {"lr": 2}
        assert len(second.earlier) == 1
        before = campaign.verdict(), campaign.model(), campaign.runs
    again = Campaign.read(folder)
    assert (again.verdict(), again.model(), again.runs) == before


def test_a_keep_decides_an_earlier_proposal_at_once(folder):
    def run(campaign, number):
        """Record the runs that a proposal needs next."""
        for need in campaign.verdict(number).needs:
            for seed in need.seeds:
                score = noisy(seed, 1.5 if need.arm == "proposal" else 0.5, need.arm)
                campaign.record(need.arm, seed, score, proposal=need.proposal)
        return campaign.decide()

    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        for _ in range(2):
            campaign.propose({"lr": 2})
        for number in (2, 1):  # the second passes its test before the first does
            while campaign.proposals[number - 1].beside is None:
                run(campaign, number)
        decided = run(campaign, 2)
        assert (campaign.kept, campaign.open_proposals, decided.proposal) == ([2], [], 1)
        assert "same change" in campaign.proposals[0].decision["reason"]


def test_the_same_change_is_not_kept_twice(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({"lr": 2})
        campaign.propose({"lr": 2})
        record_needed(
            campaign,
            lambda arm, seed, number: noisy(
                seed, 0.5 + bool(number or campaign.baseline_of(seed).settings), f"{arm}{number}"
            ),
        )
        assert campaign.kept == [1]
        assert "same change" in campaign.proposals[1].decision["reason"]


def test_the_baseline_runs_again_after_ten_undecided_proposals(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        for number in range(10):
            assert campaign.baseline.scores
            campaign.propose({}, note=f"nothing {number}")
            run_proposal(campaign, 0.2)
        campaign.propose({}, note="the eleventh")
        need, _ = campaign.verdict().needs
        assert (need.arm, need.seeds) == ("baseline", (1000, 1001, 1002, 1003))
        record_needed(campaign, lambda arm, seed, number: noisy(seed, 0.2 if number else 0.8))
        ((baseline, move),) = campaign.moves()
        assert (baseline, move.has_moved) == (1, True)
        assert move.change == pytest.approx(0.3, abs=0.06)
        before = campaign.moves(), campaign.baseline
    again = Campaign.read(folder)
    assert (again.moves(), again.baseline) == before


def test_a_jump_of_all_scores_is_no_gain(folder):
    """The next job has another machine: everything that runs from now on scores 1 higher."""
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({}, note="docs only")
        ran = record_needed(campaign, lambda arm, seed, number: noisy(seed, 1.5, f"{arm}{number}"))
        assert campaign.kept == []
        assert ("baseline", 1000) in ran and ("proposal", 1000) in ran
        assert [move.has_moved for _, move in campaign.moves()] == [True]


def test_a_proposal_equal_to_the_baseline_is_refused(folder):
    with Campaign.read(folder).change() as campaign:
        with refused("proposal-equal", ConfigError):
            campaign.propose({})
        assert not campaign.proposals


def test_runs_that_were_not_asked_for_are_refused(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        with refused("no-open-proposal", ConfigError):
            campaign.record("proposal", 0, 1.0)
        campaign.propose({}, note="lucky")
        with refused("seed-not-asked", ConfigError):
            campaign.record("proposal", 7, 1.0)
        campaign.record("proposal", 0, 0.6)
        with refused("result-twice", ConfigError):
            campaign.record("proposal", 0, 0.9)
        with refused("no-arm", ConfigError):
            campaign.record("candidate", 1, 1.0)


def test_the_level_falls_with_proposals_and_rises_with_keeps(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        levels = []
        for _ in range(3):
            campaign.propose({}, note="nothing")
            verdict, _ = run_proposal(campaign, 0.2)
            levels.append(verdict.answer.difference.level)
        assert levels == sorted(levels, reverse=True)
        campaign.propose({}, note="better")
        run_proposal(campaign, 1.0)
        measure_baseline(campaign, 1.0)
        campaign.propose({}, note="next")
        verdict, _ = run_proposal(campaign, 0.2)
        assert verdict.answer.difference.level > levels[-1]


def test_an_edited_event_is_noticed(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines()
    event = json.loads(lines[1])
    event["score"] += 0.01
    path.write_text("\n".join([lines[0], json.dumps(event), *lines[2:]]) + "\n")
    with refused("campaign-checksum", StorageError) as caught:
        Campaign.read(folder)
    assert caught.value.where.endswith("events.jsonl:2")


_CONFIGURATION = {"settings": {}, "command": None, "revision": None}
_DECISION = {"outcome": "keep", "reason": "better"}
_RESULT = {"event": "result", "seed": 0, "score": 0.5, "reason": ""}


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ({"event": "future"}, "future"),
        ({"number": 1}, "None"),
        ({"event": "asked", "number": 1}, "seeds"),
        ({"event": "asked", "number": 1, "seeds": 3}, "proposal 1"),
        ({"event": "asked", "number": None, "seeds": 3}, "re-check"),
        ({"event": "decision", "number": 7, **_DECISION}, "proposal 7"),
        ({"event": "decision", "number": 0, **_DECISION}, "proposal 0"),
        ({"event": "decision", "number": "1", **_DECISION}, "proposal '1'"),
        ({"event": "rechecked", **_DECISION}, "re-check"),
        ({"event": "again", "number": 2}, "proposal 2"),
        ({"event": "proposal", "number": 2, "note": "", **_CONFIGURATION}, "proposal 2"),
        ({"event": "compared", "number": 1, "baseline": 0, **_CONFIGURATION}, "proposal 1"),
        ({**_RESULT, "arm": "other"}, "other"),
        ({**_RESULT, "arm": "first"}, "first"),
        ({**_RESULT, "arm": "proposal"}, "proposal"),
        ({**_RESULT, "arm": "proposal", "number": 3}, "proposal 3"),
        ({"event": "result", "arm": "baseline", "seed": 0}, "reason, score"),
        ({"event": "batch", "parts": [{"arm": "baseline"}]}, "results"),
        ({"event": "batch", "parts": [{"arm": "other", "results": [[0, 1, ""]]}]}, "other"),
    ],
)
def test_an_event_of_another_version_is_named_with_its_line(folder, event, fault):
    with Campaign.read(folder).change() as campaign:
        campaign._writer.append(with_checksum(event))
    with refused("of-another-version", StorageError, names=("events.jsonl:2", fault)):
        Campaign.read(folder)


def test_a_campaign_is_replayed_from_plain_events(tmp_path):
    start = {"event": "baseline", **_CONFIGURATION}
    result = {**_RESULT, "arm": "baseline"}
    assert Campaign(tmp_path, SPEC, [start, result]).baseline.scores == {0: 0.5}
    with pytest.raises(UnknownEventError, match="result precedes") as caught:
        Campaign(tmp_path, SPEC, [result, start])
    assert caught.value.number == 1


def test_a_fault_of_the_program_is_not_reported_as_another_version(folder, monkeypatch):
    monkeypatch.setattr(state, "Arm", lambda *fields, **files: {}["a bug"])
    with pytest.raises(KeyError):
        Campaign.read(folder)


def test_two_campaigns_in_one_folder_are_refused(folder, tmp_path):
    with refused("campaign-exists", ConfigError):
        start_campaign(folder, SPEC)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with refused("folder-not-empty", ConfigError):
        start_campaign(tmp_path / "other", SPEC)


@pytest.mark.parametrize("moved", range(4))
def test_a_campaign_that_was_killed_while_it_started_is_started_again(tmp_path, moved, monkeypatch):
    replace = Path.replace
    moves = []

    def killed(path, target):
        if len(moves) == moved:
            raise KeyboardInterrupt
        moves.append(path.name)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        start_campaign(tmp_path / "camp", SPEC, program="name: toy\n")
    monkeypatch.setattr(Path, "replace", replace)
    with refused("no-campaign", MissingError):
        Campaign.read(tmp_path / "camp")
    start_campaign(tmp_path / "camp", SPEC, program="name: toy\n")
    names = {path.name for path in (tmp_path / "camp").iterdir()}
    assert names == {".gitignore", "campaign.yaml", "events.jsonl", "program.yaml"}


def test_a_folder_without_a_campaign_is_named(tmp_path):
    with refused("no-campaign", MissingError):
        Campaign.read(tmp_path)


def test_two_processes_cannot_change_one_campaign(folder):
    with (
        Campaign.read(folder).change(),
        pytest.raises(NameInUseError),
        Campaign.read(folder).change(),
    ):
        pass


def keep_changes(campaign, mean, changes=1):
    """Propose changes that score ``mean``, far above 0.5, so that each is kept."""
    for change in range(changes):
        if campaign.verdict().outcome == "more":
            for need in campaign.verdict().needs:
                for seed in need.seeds:
                    campaign.record(need.arm, seed, noisy(seed, mean * change + 0.5))
        campaign.propose({}, note=f"change {change}")
        while True:
            verdict = campaign.decide()
            if verdict.outcome != "more":
                break
            for need in verdict.needs:
                for seed in need.seeds:
                    gain = mean * (change + (need.arm == "proposal"))
                    campaign.record(need.arm, seed, noisy(seed, gain + 0.5, need.arm))
        assert verdict.outcome == "keep"


def run_recheck(campaign, latest):
    """Record what a re-check asks for; return the verdict and the seeds of both arms."""
    seeds = {"first": [], "baseline": []}
    while True:
        verdict = campaign.decide()
        if verdict.outcome != "more":
            return verdict, seeds
        for need in verdict.needs:
            for seed in need.seeds:
                mean = latest if need.arm == "baseline" else 0.5
                campaign.record(need.arm, seed, noisy(seed, mean, need.arm))
                seeds[need.arm].append(seed)


def test_a_chain_is_confirmed_on_fresh_seeds_of_both(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        keep_changes(campaign, 1.0, changes=5)
        assert campaign.recheck_due
        campaign.recheck()
        assert not campaign.recheck_due
        verdict, seeds = run_recheck(campaign, 5.5)
        assert verdict.outcome == "confirmed"
        assert seeds["first"] == seeds["baseline"]
        earlier = {
            seed for arm in (*campaign.baselines, *campaign.proposals) for seed in arm.scores
        }
        assert not earlier & set(seeds["first"])
        assert (campaign.kept, campaign.unconfirmed) == ([1, 2, 3, 4, 5], [])
        with refused("nothing-to-recheck", ConfigError):
            campaign.recheck()


def test_an_unconfirmed_chain_goes_back_to_the_last_confirmed(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({"lr": 2})
        run_proposal(campaign, 1.0)
        campaign.recheck()
        assert run_recheck(campaign, 1.0)[0].outcome == "confirmed"
        measure_baseline(campaign, 1.0)
        campaign.propose({"lr": 3})
        run_proposal(campaign, 3.0)
        assert campaign.kept == [1, 2]
        campaign.recheck()
        with refused("recheck-open", ConfigError):
            campaign.propose({"lr": 4})
        with refused("seed-not-asked", ConfigError):
            campaign.record("first", 0, 0.5)
        verdict, _ = run_recheck(campaign, 0.4)
        assert verdict.outcome == "unconfirmed"
        assert campaign.kept == [1]
        assert campaign.baseline.settings == {"lr": 2}
        assert campaign.verdict().needs[0].seeds == (5000, 5001, 5002, 5003)
        measure_baseline(campaign, 1.0)
        before = campaign.kept, campaign.verdict(), campaign.model(), campaign.baseline
    again = Campaign.read(folder)
    assert (again.kept, again.verdict(), again.model(), again.baseline) == before


def test_an_interrupted_recheck_goes_on(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        keep_changes(campaign, 1.0)
        campaign.recheck()
        campaign.record("first", 2500, 0.5)
    with Campaign.read(folder).change() as campaign:
        assert campaign.verdict().needs[0].seeds == tuple(range(2501, 2500 + gate.FIRST_CLAIM))
        assert run_recheck(campaign, 1.5)[0].outcome == "confirmed"


def test_a_failed_run_of_the_chain_does_not_confirm_it(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        keep_changes(campaign, 1.0)
        with refused("no-open-recheck", ConfigError):
            campaign.record("first", 1500, 0.5)
        campaign.recheck()
        campaign.record("first", 2500, None, "no memory")
        assert campaign.verdict().needs[0].seeds == tuple(range(2501, 2501 + gate.FIRST_CLAIM))
        campaign.record("baseline", 2501, None, "diverged")
        (need,) = campaign.decide().needs  # the first baseline may fail on this seed, too
        assert (need.arm, need.seeds) == ("first", (2501,))
        campaign.record("first", 2501, 0.5)
        verdict = campaign.decide()
        assert verdict.outcome == "unconfirmed"
        assert "the current baseline's seed 2501 failed: diverged" in verdict.reason
        assert campaign.kept == []


def test_a_seed_of_a_recheck_on_which_both_baselines_fail_is_replaced(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        keep_changes(campaign, 1.0)
        campaign.recheck()
        campaign.record("baseline", 2500, None, "diverged")
        campaign.record("first", 2500, None, "diverged")
        verdict, seeds = run_recheck(campaign, 1.5)
        assert verdict.outcome == "confirmed"
        assert seeds["first"] == seeds["baseline"]
        assert 2500 not in seeds["first"]


def test_a_recheck_in_which_every_run_fails_discards_nothing(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        keep_changes(campaign, 1.0)
        campaign.recheck()
        for seed in range(2500, 2500 + SPEC.first_seeds):
            campaign.record("baseline", seed, None, "no GPU")
            campaign.record("first", seed, None, "no GPU")
        with refused("baseline-fails", ConfigError, names=("no GPU",)):
            campaign.decide()
        assert campaign.kept == [1]


def test_a_recheck_says_why_it_needs_runs(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        keep_changes(campaign, 1.0)
        campaign.recheck()
        assert "compares the current baseline with the first" in campaign.verdict().reason


def test_a_seed_on_which_a_proposal_has_failed_is_not_asked_for_again(folder):
    with Campaign.read(folder).change() as campaign:
        campaign.propose({}, note="fails")
        campaign.record("proposal", 0, None, "diverged")
        needs = campaign.verdict().needs
        assert {need.arm for need in needs} == {"baseline"}


def test_equal_scores_on_all_seeds_discard_the_proposal_and_not_the_campaign(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        campaign.propose({"seed": 7}, note="one seed for all runs")
        while (verdict := campaign.decide()).outcome == "more":
            for need in verdict.needs:
                for seed in need.seeds:
                    fixed = need.arm == "proposal"
                    campaign.record(need.arm, seed, 1.0 if fixed else noisy(seed, 0.5))
        assert verdict.outcome == "discard"
        assert campaign.kept == []
        assert campaign.verdict().outcome == "ready"


def test_an_edited_program_of_a_campaign_is_refused(tmp_path):
    start_campaign(tmp_path / "camp", SPEC, program="name: toy\n")
    Campaign.read(tmp_path / "camp")
    (tmp_path / "camp" / "program.yaml").write_text("name: other\n")
    with refused("program-edited", ConfigError):
        Campaign.read(tmp_path / "camp")


def test_a_value_equal_to_the_default_is_no_change(folder):
    with Campaign.read(folder).change() as campaign:
        measure_baseline(campaign)
        with refused("proposal-equal", ConfigError):
            campaign.propose({"lr": 0.1}, defaults={"lr": 0.1, "steps": 3})
