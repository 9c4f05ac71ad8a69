"""``sweep gate`` and ``sweep noise`` as typed."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loptune.errors import NameInUseError
from loptune.run_names import lock_folder
from sweep.cli import main
from sweep.commands.noise import _noise_sentences
from sweep.gate.aa_test import NoiseReport
from sweep.gate.batch import BatchResults
from sweep.gate.campaign import Campaign, Finished
from sweep.search.history import ENDED, STARTED
from tests.warm import warm_interpreters

PROGRAM = """\
import argparse, json, os, random, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seed", type=int)
arguments = parser.parse_args()
time.sleep(float(os.environ.get("SLOW", "0")))
noise = random.Random(arguments.seed).gauss(0, 0.02)
noise += random.Random(f"{arguments.seed} {arguments.lr}").gauss(0, 0.005)
print("[loptune] " + json.dumps({"step": 1, "score": arguments.lr + noise}))
"""
SPACE = """\
name: toy
program:
  command: [%s, toy.py, --lr, "{lr}", --seed, "{seed}"]
  defaults: {lr: 0.1}
objective: {metric: score, mode: max, window: 1, worthwhile: 0.05}
baselines: [{}]
search: {configurations: 0}
limits: {max_concurrent: 1}
"""


def answer(capsys, *words):
    """Run ``sweep gate WORDS --json``; return the status and the answer."""
    status = main(["gate", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_agent_reads_what_to_run_and_records_it(here, capsys):
    status, said = answer(capsys, "start", "camp", "--worthwhile", "0.1", "--first-seeds", "3")
    assert (status, said["outcome"]) == (11, "more")
    assert said["needs"] == [{"arm": "baseline", "seeds": [0, 1, 2]}]
    for seed, score in enumerate((0.50, 0.52, 0.51)):
        status, said = answer(capsys, "record", "camp", "baseline", str(seed), str(score))
    assert (status, said["outcome"]) == (0, "ready")
    status, said = answer(capsys, "propose", "camp", "--note", "no warmup")
    assert (status, said["needs"]) == (11, [{"arm": "proposal", "seeds": [0], "proposal": 1}])
    status, said = answer(capsys, "record", "camp", "proposal", "0", "0.3")
    assert (status, said["outcome"], said["proposal"]) == (10, "discard", 1)
    status, said = answer(capsys, "propose", "camp", "--note", "crashes")
    status, said = answer(capsys, "record", "camp", "proposal", "0", "failed")
    assert (status, said["outcome"]) == (10, "discard")
    status, said = answer(capsys, "status", "camp")
    assert (status, said["proposals"], said["kept"]) == (0, 2, [])


def test_the_next_command_works_for_a_folder_with_a_space(here, capsys):
    main(["gate", "start", "my camp", "--worthwhile", "0.1", "--first-seeds", "3"])
    for seed in range(3):
        printed = capsys.readouterr().out.splitlines()[-1]
        program, *words = shlex.split(printed.removeprefix("next: "))
        assert program == "sweep" and words[:5] == [
            "gate",
            "record",
            "my camp",
            "baseline",
            str(seed),
        ]
        main([*words[:-1], str(0.5 + seed / 100)])
    assert Campaign.read(here / "my camp").baseline.scores == {0: 0.5, 1: 0.51, 2: 0.52}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["start", "camp"], "no-worthwhile"),
        (["start", "camp", "--worthwhile", "1", "--false-keeps", "2"], "false-keeps"),
        (["start", "camp", "--worthwhile", "1", "--first-seeds", "2"], "too-few-seeds"),
        (["start", "camp", "--worthwhile", "1", "--most-seeds", "7"], "too-few-seeds"),
        (["start", "camp", "lr=1", "--worthwhile", "1"], "no-program"),
        (["status", "camp"], "no-campaign"),
    ],
)
def test_wrong_words_are_answered_with_a_code(here, capsys, words, code):
    assert main(["gate", *words]) in (2, 3)
    assert f"[{code}]" in capsys.readouterr().err
    assert not (here / "camp").exists()


def test_unknown_settings_are_refused_before_a_campaign_starts(here, capsys):
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    assert main(["gate", "start", "camp", "ls=1", "--space", "./toy.yaml"]) == 2
    said = capsys.readouterr().err
    assert "[unknown-setting]" in said
    assert "lr" in said
    assert not (here / "camp").exists()


def test_a_proposed_command_keeps_its_own_options(here, capsys):
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    (here / "toy.py").write_text(PROGRAM)
    (here / "other.py").write_text(PROGRAM)
    answer(capsys, "start", "camp", "--space", "./toy.yaml")
    words = ["python", "other.py", "--lr", "{lr}", "--seed", "{seed}"]
    assert main(["gate", "propose", "camp", "lr=0.2", "--json", "--command", *words]) == 11
    proposal = Campaign.read(here / "camp").open
    assert (proposal.command, proposal.settings) == (words, {"lr": 0.2})


def test_a_campaign_without_a_program_runs_nothing(here, capsys):
    main(["gate", "start", "camp", "--worthwhile", "1"])
    assert main(["gate", "run", "camp"]) == 2
    assert "[no-program]" in capsys.readouterr().err


def test_scores_recorded_by_hand_beside_a_program_are_marked_in_every_answer(here, capsys):
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    _, said = answer(capsys, "start", "camp", "--space", "./toy.yaml", "--first-seeds", "3")
    first, second, third = said["needs"][0]["seeds"]
    with Campaign.read(here / "camp").change() as changed:
        ran = Finished(arm="baseline", scores={first: 0.5, second: 0.52}, failed={})
        changed.record_batch([ran])
    _, said = answer(capsys, "status", "camp")
    assert said["by_hand"] == []
    _, said = answer(capsys, "record", "camp", "baseline", str(third), "0.51")
    assert said["by_hand"] == [{"what": "baseline", "seeds": [third]}]
    answer(capsys, "propose", "camp", "lr=0.3")
    _, said = answer(capsys, "record", "camp", "proposal", str(first), "0.3")
    assert said["outcome"] == "discard"
    assert said["history"][0]["by_hand"] == [first]
    main(["gate", "status", "camp"])
    shown = capsys.readouterr().out
    assert "1 (1 by hand)" in shown
    assert f"own runs: baseline: seed {third}; proposal 1: seed {first}." in shown


@pytest.mark.slow
def test_a_campaign_runs_its_trainings_and_survives_a_kill(here, capsys):
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    (here / "toy.py").write_text(PROGRAM)
    options = ("--space", "./toy.yaml", "--first-seeds", "3")
    status, _ = answer(capsys, "start", "camp", *options)
    assert status == 11
    line = [sys.executable, "-m", "sweep", "gate", "propose", "camp", "lr=0.3", "--run"]
    slow = {**os.environ, "SLOW": "3", "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(line, env=slow, start_new_session=True)
    try:
        _wait_for_a_result(here / "camp" / "runs")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    status, said = answer(capsys, "status", "camp")
    assert (status, said["proposal"]) == (11, 1)
    with warm_interpreters():
        status, said = answer(capsys, "run", "camp")
    assert status == 0
    assert (said["outcome"], said["proposal"], said["kept"]) == ("keep", 1, [1])
    assert said["gain"] == pytest.approx(0.2, abs=0.05)
    campaign = Campaign.read(here / "camp")
    assert list(campaign.baselines[0].scores) == list(map(campaign.seeds.of, range(8)))


@pytest.mark.slow
def test_a_swarm_starts_ray_once_and_ends_after_a_kill_as_undisturbed(here, capsys):
    (here / "toy.yaml").write_text(
        (SPACE % sys.executable).replace("max_concurrent: 1", "max_concurrent: 4")
    )
    (here / "toy.py").write_text(PROGRAM)
    for name in ("calm", "killed"):
        options = ("--space", "./toy.yaml", "--first-seeds", "3", "--secret", "s", "--new-budget")
        answer(capsys, "start", name, *options)
        for lr in (0.3, 0.11, 0.12):
            answer(capsys, "propose", name, f"lr={lr}")
    calm = subprocess.run(run_line("calm"), env=SLOW, capture_output=True, text=True, check=True)
    assert calm.stderr.count("starting Ray") == 1
    assert most_at_once(here / "calm" / "runs") > 1
    process = subprocess.Popen(run_line("killed"), env=SLOW, start_new_session=True)
    try:
        _wait_for_a_result(here / "killed" / "runs")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(run_line("killed"), env=SLOW, check=True, capture_output=True)
    calm, killed = ((here / name / "events.jsonl").read_text() for name in ("calm", "killed"))
    assert calm.splitlines()[1:] == killed.splitlines()[1:]
    assert Campaign.read(here / "killed").kept == [1]


STEPS = {STARTED: 1, ENDED: -1}
SLOW = {**os.environ, "SLOW": "1", "PYTHONPATH": str(Path(__file__).parents[3])}


def run_line(campaign):
    return [sys.executable, "-m", "sweep", "gate", "run", campaign, "--parallel", "4"]


def most_at_once(runs):
    """Return the largest number of trials, of any batch, that were running together."""
    changes = []
    for path in runs.glob("*/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["event"] in STEPS:
                changes.append((event["time"], STEPS[event["event"]]))
    running = [0]
    for _, change in sorted(changes):
        running.append(running[-1] + change)
    return max(running)


def said_error(capsys, *words):
    """Run a command that is refused; return its code and what it says to do."""
    assert main(["gate", *words]) in (2, 3, 4)
    lines = capsys.readouterr().err.splitlines()
    error = next(line for line in lines if line.startswith("error:"))
    hint = next(line for line in lines if line.startswith("next:"))
    return error.rpartition("[")[2].rstrip("]"), hint


def measured(capsys, *options):
    """Start a campaign whose baseline is measured."""
    answer(capsys, "start", "camp", "--worthwhile", "0.1", "--first-seeds", "3", *options)
    for seed, score in enumerate((0.50, 0.52, 0.51)):
        _, said = answer(capsys, "record", "camp", "baseline", str(seed), str(score))
    return said


def record_needed(capsys, means):
    """Record what the campaign asks for, by arm, until it decides; return status and answer."""
    status, said = answer(capsys, "status", "camp")
    while said["outcome"] == "more":
        for need in said["needs"]:
            for seed in need["seeds"]:
                score = str(means[need["arm"]] + seed % 7 / 100)
                status, said = answer(capsys, "record", "camp", need["arm"], str(seed), score)
    return status, said


def test_a_log_is_searched(here, capsys):
    measured(capsys)
    for note in ("Longer warmup", "wider MLP"):
        answer(capsys, "propose", "camp", "--note", note)
        answer(capsys, "record", "camp", "proposal", "0", "0.3")
    status, said = answer(capsys, "log", "camp", "--search", "WARMUP")
    assert (status, [each["proposal"] for each in said["proposals"]]) == (0, [1])
    assert said["proposals"][0]["outcome"] == "discard"
    _, everything = answer(capsys, "log", "camp")
    assert len(everything["proposals"]) == 2
    assert main(["gate", "log", "camp", "--search", "optimizer"]) == 0
    assert "no match among 2 proposals" in capsys.readouterr().out


def test_a_campaign_ends_with_its_state(here, capsys):
    measured(capsys, "--max-runs", "4")
    answer(capsys, "propose", "camp", "--note", "wider")
    status, said = answer(capsys, "record", "camp", "proposal", "0", "0.6")
    assert (status, said["outcome"], said["open"], said["runs"]) == (12, "ended", [1], 4)
    assert main(["gate", "status", "camp"]) == 12
    assert "Undecided: 1." in capsys.readouterr().out
    assert said_error(capsys, "propose", "camp", "--note", "more")[0] == "campaign-ended"


def test_a_space_without_a_worthwhile_gain_is_asked_for_one(here, capsys):
    (here / "toy.yaml").write_text((SPACE % sys.executable).replace(", worthwhile: 0.05", ""))
    assert main(["gate", "start", "camp", "--space", "./toy.yaml"]) == 2
    assert "[no-worthwhile]" in capsys.readouterr().err


def test_the_keeps_of_another_loop_are_judged(here, capsys):
    lines = ["commit\tval_bpb\tmemory_gb\tstatus\tdescription"]
    for number, (score, status) in enumerate([(1.0, "keep"), (0.99, "keep"), (0.9, "keep")]):
        lines.append(f"c{number}\t{score}\t40.0\t{status}\tchange {number}")
    (here / "results.tsv").write_text("\n".join(lines) + "\n")
    status, said = answer(capsys, "import", "results.tsv", "--sd", "0.01")
    assert (status, said["keeps"], said["would_keep"]) == (0, 2, 1)
    assert main(["gate", "import", "results.tsv"]) == 0
    printed = capsys.readouterr().out
    assert "Noise unknown" in printed and "sweep gate start camp --metric val_bpb" in printed


def test_scores_that_are_all_equal_are_refused(here, capsys):
    answer(capsys, "start", "camp", "--worthwhile", "0.1", "--first-seeds", "3")
    for seed in "01":
        answer(capsys, "record", "camp", "baseline", seed, "0.5")
    code, hint = said_error(capsys, "record", "camp", "baseline", "2", "0.5")
    assert code == "seed-without-effect"
    assert "sweep noise" in hint
    assert said_error(capsys, "status", "camp")[0] == "seed-without-effect"


def test_a_baseline_that_always_fails_says_why(here, capsys):
    answer(capsys, "start", "camp", "--worthwhile", "0.1", "--first-seeds", "3")
    for seed in "01":
        status, said = answer(capsys, "record", "camp", "baseline", seed, "failed")
        assert (status, said["outcome"]) == (11, "more")
    code, hint = said_error(capsys, "record", "camp", "baseline", "2", "failed")
    assert code == "baseline-fails"
    assert "fix the program" in hint and "another folder" in hint


def test_a_proposal_equal_to_the_baseline_is_refused(here, capsys):
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    (here / "toy.py").write_text(PROGRAM)
    answer(capsys, "start", "camp", "lr=0.2", "--space", "./toy.yaml")
    code, hint = said_error(capsys, "propose", "camp", "lr=0.2")
    assert code == "proposal-equal"
    assert "KEY=VALUE" in hint


def test_a_folder_holds_one_campaign(here, capsys):
    measured(capsys)
    code, hint = said_error(capsys, "start", "camp", "--worthwhile", "0.2")
    assert code == "campaign-exists"
    assert "sweep gate status camp" in hint
    (here / "notes").mkdir()
    (here / "notes" / "todo.txt").write_text("buy milk")
    code, hint = said_error(capsys, "start", "notes", "--worthwhile", "0.2")
    assert code == "folder-not-empty"
    assert [path.name for path in (here / "notes").iterdir()] == ["todo.txt"]


def test_a_score_edited_by_hand_is_found(here, capsys):
    measured(capsys)
    events = here / "camp" / "events.jsonl"
    events.write_text(events.read_text().replace("0.52", "0.62"))
    code, hint = said_error(capsys, "status", "camp")
    assert code == "campaign-checksum"
    assert "backup" in hint


def test_settings_of_a_campaign_edited_by_hand_are_found(here, capsys):
    measured(capsys)
    settings = here / "camp" / "campaign.yaml"
    settings.write_text(settings.read_text().replace("worthwhile: 0.1", "worthwhile: 0.02"))
    code, hint = said_error(capsys, "propose", "camp", "--note", "smaller gains count, too")
    assert code == "campaign-edited"
    assert "restore 0.1" in hint


def test_a_chain_is_checked_again_by_command(here, capsys):
    measured(capsys)
    assert said_error(capsys, "recheck", "camp")[0] == "nothing-to-recheck"
    answer(capsys, "propose", "camp", "--note", "wider")
    _, said = record_needed(capsys, {"baseline": 0.5, "proposal": 0.9})
    assert (said["outcome"], said["recheck_due"]) == ("keep", False)
    status, said = answer(capsys, "recheck", "camp")
    assert (status, [need["arm"] for need in said["needs"]]) == (11, ["first", "baseline"])
    status, said = record_needed(capsys, {"first": 0.5, "baseline": 0.5})
    assert (status, said["outcome"], said["kept"]) == (10, "unconfirmed", [])


def test_a_program_that_ignores_its_seed_is_found(here, capsys, monkeypatch):
    ran = []

    class Pool:
        def __init__(self, folder, **options):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def submit(self, batch, place):
            ran.append(batch)

        def wait(self, timeout):
            return {each.name: BatchResults(dict.fromkeys(each.seeds, 0.1), {}) for each in ran}

    monkeypatch.setattr("sweep.gate.runs.RunPool", Pool)
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    answer(capsys, "start", "camp", "--space", "./toy.yaml", "--first-seeds", "3")
    code, hint = said_error(capsys, "propose", "camp", "lr=0.3", "--run")
    assert code == "seed-without-effect"
    assert "sweep noise" in hint
    seeds = Campaign.read(here / "camp").seeds
    assert (ran[0].settings, ran[0].seeds) == ({}, tuple(map(seeds.of, range(3))))


def git(*words):
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", *identity, *words], check=True, capture_output=True)


@pytest.mark.slow
def test_a_revision_is_checked_out_and_run_as_the_proposal(here, capsys):
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    (here / "toy.py").write_text(PROGRAM)
    git("init", "-q", "-b", "main")
    git("add", "toy.py", "toy.yaml")
    git("commit", "-q", "-m", "baseline")
    git("checkout", "-q", "-b", "worse")
    (here / "toy.py").write_text(PROGRAM.replace("arguments.lr + noise", "noise - 0.3"))
    git("commit", "-q", "-am", "worse")
    git("checkout", "-q", "main")
    _, said = answer(capsys, "start", "camp", "--space", "./toy.yaml", "--first-seeds", "3")
    for seed, score in zip(said["needs"][0]["seeds"], (0.09, 0.11, 0.1), strict=True):
        answer(capsys, "record", "camp", "baseline", str(seed), str(score))
    assert said_error(capsys, "propose", "camp", "--revision", "none")[0] == "no-revision"
    with warm_interpreters():
        status, said = answer(capsys, "propose", "camp", "--run", "--revision", "worse")
    assert status == 10  # the checkout's program ran
    assert (said["outcome"], said["seeds"]) == ("discard", 1)
    assert said["gain"] == pytest.approx(-0.4, abs=0.1)
    (proposal,) = Campaign.read(here / "camp").proposals
    assert len(proposal.revision) == 40
    # the files in the folder, and its branch, are untouched
    assert (here / "toy.py").read_text() == PROGRAM


def _wait_for_a_result(runs):
    for _ in range(4000):
        records = list(runs.glob("*/events.jsonl"))
        if records and '"result"' in records[0].read_text():
            return
        time.sleep(0.1)
    raise AssertionError("no run ended")


def test_the_command_that_continues_a_measurement_of_noise_repeats_it(here, capsys, monkeypatch):
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    (here / "toy.py").write_text(PROGRAM)
    calls = []

    def measure(*counts, program, resume):
        calls.append((counts, program, resume))
        return NoiseReport(
            scores={0: 0.5, 1: 0.6, 2: 0.8}, repeated={0: 0.5}, failed=[], minutes=1.0
        )

    monkeypatch.setattr("sweep.gate.aa_test.measure", measure)
    assert (
        main(
            ["noise", "./toy.yaml", "limits.max_concurrent=2", "--seeds", "3", "--output", "other"]
        )
        == 0
    )
    program, *words = shlex.split(calls[0][-1])
    assert (program, main(words)) == ("sweep", 0)
    assert calls[0] == calls[1]


def test_a_seed_that_failed_in_one_of_its_two_runs_is_not_reproducible(here):
    report = NoiseReport(scores={1: 0.5, 2: 0.6}, repeated={0: 0.4}, failed={0: "x"}, minutes=1.0)
    lines = _noise_sentences(report, "acc", 0.1)
    assert any("a seed failed in only one of its two runs" in line for line in lines)


def test_two_measurements_of_noise_do_not_share_a_folder(here, capsys):
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    (here / "toy.py").write_text(PROGRAM)
    with lock_folder(here / "noise"):
        assert main(["noise", "./toy.yaml"]) == NameInUseError.exit_code
    message = capsys.readouterr().err
    assert "[name-held]" in message and "--output" in message
    assert not (here / "noise" / "program.yaml").exists()  # that of the other measurement stays


@pytest.mark.slow
def test_noise_tells_spread_repetition_and_the_seeds_that_are_needed(here, capsys):
    (here / "toy.yaml").write_text(SPACE % sys.executable)
    (here / "toy.py").write_text(PROGRAM)
    with warm_interpreters():
        assert main(["noise", "./toy.yaml", "--seeds", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["seed_matters"] is True
    assert said["repeats"] is True
    assert sorted(said["scores"]) == ["0", "1", "2"]
    low, high = said["sd_interval"]
    assert low < said["sd"] < high
    found = list(said["detectable"].values())
    assert found == sorted(found, reverse=True)
    assert main(["plan", "./toy.yaml", "--step-seconds", "1", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["noise"]
    assert (planned["sd"], planned["dof"]) == (pytest.approx(said["sd"]), 2)
