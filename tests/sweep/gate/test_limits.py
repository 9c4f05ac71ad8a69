"""Limits of a campaign end it, and its state is said."""

import datetime
import json
import time

import pytest

from loptune.errors import ConfigError
from sweep.gate.campaign import Campaign, CampaignSpec, start_campaign
from sweep.gate.limits import read_deadline
from tests.refusals import refused

SPEC = CampaignSpec(worthwhile=0.1, first_seeds=3)


def measured(tmp_path, **limits):
    """A campaign with limits whose baseline has run."""
    start_campaign(tmp_path / "camp", SPEC.model_copy(update=limits))
    with Campaign.read(tmp_path / "camp").change() as campaign:
        for seed in range(3):
            campaign.record("baseline", seed, 0.5 + seed / 100)
    return tmp_path / "camp"


def propose(folder, *scores):
    """Propose a change and record its scores; return the last verdict."""
    with Campaign.read(folder).change() as campaign:
        campaign.propose({}, note="a change")
        for score in scores:
            campaign.record("proposal", campaign.verdict().needs[-1].seeds[0], score)
            verdict = campaign.decide()
        return campaign.verdict() if not scores else verdict


def test_a_campaign_ends_when_the_next_runs_exceed_its_runs(tmp_path):
    folder = measured(tmp_path, max_runs=4)
    assert Campaign.read(folder).verdict().outcome == "ready"
    verdict = propose(folder, 0.6)
    assert (verdict.outcome, Campaign.read(folder).runs) == ("ended", 4)
    assert "4 of --max-runs 4" in verdict.reason
    with refused("campaign-ended", ConfigError), Campaign.read(folder).change() as campaign:
        campaign.propose({}, note="one more")


def test_runs_that_decide_do_so_at_the_end_of_a_campaign(tmp_path):
    folder = measured(tmp_path, max_runs=4)
    assert propose(folder, 0.2).outcome == "discard"
    assert Campaign.read(folder).verdict().outcome == "ended"


def test_a_campaign_ends_after_its_proposals(tmp_path):
    folder = measured(tmp_path, max_proposals=1)
    assert propose(folder, 0.2).outcome == "discard"
    assert Campaign.read(folder).verdict().outcome == "ended"
    with refused("campaign-ended", ConfigError), Campaign.read(folder).change() as campaign:
        campaign.propose({}, note="one more")


@pytest.mark.parametrize("limit", ["max_hours", "deadline"])
def test_a_campaign_ends_after_its_time(tmp_path, monkeypatch, limit):
    later = datetime.datetime.now() + datetime.timedelta(hours=2)
    limits = {"max_hours": 2.0, "deadline": read_deadline(later.isoformat())}
    folder = measured(tmp_path, **{limit: limits[limit]})
    assert propose(folder).outcome == "more"
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 2 * 3600 + 1)
    verdict = Campaign.read(folder).verdict()
    assert (verdict.outcome, verdict.needs) == ("ended", ())
    assert f"--{limit.replace('_', '-')}" in verdict.reason


@pytest.mark.parametrize("text", ["tomorrow", "0001-01-01"])
def test_a_deadline_without_a_date_is_refused(text):
    with refused("no-date", ConfigError, names=(text,)):
        read_deadline(text)


def test_a_deadline_has_a_time_zone():
    assert read_deadline("2027-01-31T18:00+01:00").startswith("2027-01-31T")


def test_a_campaign_records_when_it_started(tmp_path):
    folder = measured(tmp_path)
    event = json.loads((folder / "events.jsonl").read_text().splitlines()[0])
    assert abs(event["time"] - time.time()) < 3600
