"""The end of a confirmation, whichever command ran its last trial."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from sweep.driver import run
from sweep.record.trial_table import setting_text
from sweep.search.event_log import EventLog
from sweep.search.history import PLAN
from sweep.winner.confirm import fresh_space
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.search.test_tournament import tournament

SEARCHED = {0: {0: 0.50, 1: 0.51}, 1: {0: 0.56, 1: 0.58}}
FRESH = {0: {2: 0.5, 3: 0.51, 4: 0.52}, 1: {2: 0.6, 3: 0.615, 4: 0.62}}
CONFIRMS = {"sweep": "demo", "configurations": [0, 1]}


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """A sweep whose confirmation ends as soon as it is started or resumed; the reports asked for
    by the driver.
    """
    reports = []

    def start(fresh, options):
        write_sweep(tmp_path, fresh.folder.name, FRESH, confirms=CONFIRMS)
        return resume(fresh, options)

    def resume(sweep, options):
        reports.append(options.report)
        return 0

    monkeypatch.setattr(run, "start_sweep", start)
    monkeypatch.setattr(run, "resume_sweep", resume)
    write_sweep(tmp_path, "demo", SEARCHED)
    return reports


def test_a_resumed_confirmation_ends_with_the_verdict_of_confirm(ended, typed):
    first, _, told = typed("sweep confirm demo").partition("\n")
    assert "of the search have not ended" in first  # what only the choice of finalists says
    assert "Confirmed: " in told and "sweep export demo" in told and "report: " in told
    assert typed("sweep resume demo-confirm") == told
    assert ended == [False, False]  # the confirmation has no report of its own


def test_a_resumed_search_writes_its_own_report(ended, typed):
    assert "Confirmed" not in typed("sweep resume demo")
    assert ended == [True]


def test_a_confirmation_whose_sweep_is_gone_is_resumed_alone(ended, typed, tmp_path):
    write_sweep(tmp_path, "other-confirm", FRESH, confirms={**CONFIRMS, "sweep": "other"})
    typed("sweep resume other-confirm")
    assert ended == [True]


def test_resumed_rounds_name_the_command_that_goes_on(ended, typed, tmp_path):
    fresh = write_sweep(tmp_path, "demo-confirm", FRESH, confirms=CONFIRMS)
    design = {"analyses": [5, 10], "finalists": 1, "worthwhile": 0.02}
    design |= {"efficacy": [2.0, 2.0], "futility": [2.0, 2.0]}
    EventLog(fresh.folder.event_log).append({"event": PLAN, "design": design, "sd": 0.01, "dof": 1})
    told = typed("sweep resume demo-confirm")
    assert "Confirmed" not in told
    assert "sweep confirm demo --rounds" in told.splitlines()[-1]


def test_a_confirmation_of_arms_remembers_what_names_them(tmp_path):
    sweep = write_sweep(tmp_path, "demo", SEARCHED)
    arms = replace(sweep, spec=tournament(tmp_path))
    point = {"rule": "GRPO", "optim.lr": 1e-4}
    finalist = SimpleNamespace(number=0, parameters=point)
    confirmation = fresh_space(arms, [finalist], 2)
    assert confirmation.confirms.tune_within == "rule"
    resolved = {"algorithm.advantage": "grpo", "optim.lr": 1e-4}
    assert setting_text(confirmation, resolved, point) == "GRPO lr=0.0001"
    plain = SimpleNamespace(number=0, parameters={"algorithm.ar_alpha": 0.1})
    assert fresh_space(sweep, [plain], 2).confirms.tune_within is None
