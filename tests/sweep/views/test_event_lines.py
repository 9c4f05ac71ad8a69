import itertools
import json

import pytest

from sweep.programs.base import ResourcesSpec
from sweep.record.folder import SweepFolder
from sweep.search.trial_report import TrialReport
from sweep.space.file import load_space
from sweep.views import event_lines
from sweep.views.event_lines import STARTUP_MESSAGES, EventLines
from tests.sweep.harness import write_space
from tests.sweep.programs.scripts import write_project
from tests.sweep.spaces import make_spec

TRIAL = "c000-s1"


@pytest.fixture
def lines(tmp_path):
    return EventLines(SweepFolder(tmp_path, "demo"), make_spec(tmp_path))


def test_a_trial_is_told_in_lines(lines, capsys):
    metrics = {"eval/accuracy": 0.7, "eval/accuracy/2": 0.9}
    report = TrialReport(step=20, total_steps=60, score=0.612345, evaluation=1, metrics=metrics)
    lines.started(TRIAL, {"actor.optim.lr": 1e-6, "critic.optim.lr": 1e-5}, {})
    lines.evaluated(TRIAL, report)
    lines.retried(TRIAL, "rank 0 died", 1, 2)
    lines.retried(TRIAL, "its node was lost", None, 2)
    lines.ended(TRIAL, TrialReport(step=60, score=0.612345, finished=True))
    assert capsys.readouterr().out.splitlines() == [
        "c000-s1  started    actor.optim.lr=1e-06 critic.optim.lr=1e-05",
        "c000-s1  step 20/60  score 0.6123  eval/accuracy 0.7",
        "c000-s1  retry 1 of 2: rank 0 died",
        "c000-s1  retry not counted: its node was lost",
        "c000-s1  finished   score 0.6123",
    ]


def test_a_value_of_10000_characters_takes_one_line(lines, capsys):
    lines.started(TRIAL, {"system_prompt": "think " * 2000}, {})
    (line,) = capsys.readouterr().out.splitlines()
    assert len(line) < 120


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (TrialReport(3, 0.5, finished=True), "finished   score 0.5"),
        (TrialReport(3, 0.5), "by the scheduler at step 3, score 0.5"),
        (TrialReport(3, reason="diverged at step 3: policy/loss is nan"), "diverged at step 3"),
        (TrialReport(3, stopped=True), "stopped    at step 3"),
    ],
)
def test_an_end_is_told_as_what_it_is(lines, capsys, report, words):
    lines.ended(TRIAL, report)
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("own", [True, False])
def test_a_program_that_starts_from_the_first_step_is_told(tmp_path, monkeypatch, capsys, own):
    monkeypatch.chdir(tmp_path)
    spec = load_space(write_project(tmp_path)) if own else make_spec(tmp_path)
    lines = EventLines(SweepFolder(tmp_path, "demo"), spec)
    for step in (6, 7, 1, 2):
        lines.evaluated(TRIAL, TrialReport(step=step, score=0.5, evaluation=step))
    told = capsys.readouterr().out
    assert told.count("restarted") == own
    assert ("restarted  at step 1" in told) == own


def test_an_evaluation_that_is_not_finite_is_told(lines, capsys):
    metrics = {"eval/accuracy": float("nan")}
    report = TrialReport(step=4, evaluation=2, no_score="not finite", metrics=metrics)
    lines.evaluated(TRIAL, report)
    told = capsys.readouterr().out
    assert "step 4" in told and "no score: not finite" in told and "nan" in told


def test_a_guard_that_is_not_logged_is_named_once(tmp_path, capsys):
    objective = {"guards": ["eval/accuracy/ammc:0.1", "cpu_hours:1"]}
    spec = load_space(write_space(tmp_path / "space.yaml", objective=objective))
    lines = EventLines(SweepFolder(tmp_path, "demo"), spec)
    folder = tmp_path / "demo" / "trials" / TRIAL
    folder.mkdir(parents=True)
    record = {"step": 1, "eval/accuracy/amc": 0.5, "time/step": 1}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    lines.ended(TRIAL, TrialReport(1, reason="diverged"))
    assert "guard" not in capsys.readouterr().out
    for _ in range(2):
        lines.ended(TRIAL, TrialReport(1, 0.5, finished=True))
    told = capsys.readouterr().out
    assert told.count("eval/accuracy/ammc") == 1 and "did you mean eval/accuracy/amc?" in told
    assert "cpu_hours" not in told


def test_a_trial_that_finds_no_free_resources_says_so_once(tmp_path, capsys, monkeypatch):
    four = ResourcesSpec(gpus_per_trial=4, workers_per_trial=4, cpus_per_worker=2)
    spec = make_spec(tmp_path).model_copy(update={"resources": four})
    lines = EventLines(SweepFolder(tmp_path, "demo"), spec)
    monkeypatch.setattr(event_lines.ray, "available_resources", lambda: {"GPU": 2.0, "CPU": 30.0})
    monkeypatch.setattr(event_lines.ray, "cluster_resources", lambda: {"GPU": 8.0, "CPU": 32.0})
    clock = itertools.count(0.0, 4.0)
    monkeypatch.setattr(event_lines.time, "monotonic", lambda: next(clock))
    for _ in range(10):
        lines.polled([], [TRIAL])
    assert (
        capsys.readouterr().out
        == "c000-s1  waits for 4 GPUs (2 of 8 free) and 8 CPUs (30 of 32 free)\n"
    )


def test_how_far_the_first_trial_is_is_told_as_it_starts(lines, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(event_lines, "_CHECK_INTERVAL_S", -1.0)
    folder = tmp_path / "demo" / "trials" / TRIAL
    folder.mkdir(parents=True)
    told = []
    for file, text in (
        ("config.yaml", ""),
        ("stderr.log", "rank 0: ready at step 0"),
        ("metrics.jsonl", "{}"),
    ):
        lines.polled([TRIAL], [])
        (folder / file).write_text(text)
        lines.polled([TRIAL], [])
        told.append(capsys.readouterr().out)
    assert told == [f"c000-s1  {each.message}\n" for each in STARTUP_MESSAGES]


@pytest.mark.parametrize("program", ["command", "trainer with ranks of an earlier batch"])
def test_a_start_that_takes_no_time_is_not_told(tmp_path, capsys, program):
    spec = load_space(write_project(tmp_path)) if program == "command" else make_spec(tmp_path)
    sweep = SweepFolder(tmp_path, "demo")
    lines = EventLines(sweep, spec, reports_startup=program == "command")
    folder = sweep.trial(TRIAL)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    lines.polled([TRIAL], [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("logged", [False, True])
def test_what_a_command_prints_is_shown_if_it_logs_no_metric(tmp_path, monkeypatch, capsys, logged):
    monkeypatch.chdir(tmp_path)
    lines = EventLines(SweepFolder(tmp_path, "demo"), load_space(write_project(tmp_path)))
    folder = tmp_path / "demo" / "trials" / TRIAL
    folder.mkdir(parents=True)
    bar = "\r".join(f"{percent}%" for percent in range(100))
    printed = ["loading", "{'eval_accuracy': 0.25}", bar, "{'eval_accuracy': 0.5}\x1b[2J"]
    (folder / "stdout.log").write_text("\n".join(printed))
    if logged:
        (folder / "metrics.jsonl").write_text("{}\n")
    clock = itertools.count(0.0, 50.0)
    monkeypatch.setattr(event_lines.time, "monotonic", lambda: next(clock))
    lines.started(TRIAL, {}, {})
    capsys.readouterr()
    for _ in range(10):
        lines.polled([TRIAL], [])
    told = capsys.readouterr().out
    assert told.count("has logged no metric") == (not logged)
    if not logged:
        assert "    99%\n    {'eval_accuracy': 0.5}\\x1b[2J\n" in told
        assert '[loptune] {"step": 20, "eval/accuracy": 0.61}' in told
        assert "sweep stop demo" in told


def test_a_command_that_has_logged_a_metric_is_not_watched(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = EventLines(SweepFolder(tmp_path, "demo"), load_space(write_project(tmp_path)))
    clock = itertools.count(0.0, 50.0)
    monkeypatch.setattr(event_lines.time, "monotonic", lambda: next(clock))
    lines.started(TRIAL, {}, {})
    lines.evaluated(TRIAL, TrialReport(step=1, score=0.5, evaluation=1))
    for _ in range(10):
        lines.polled([TRIAL], [])
    assert "no metric" not in capsys.readouterr().out
