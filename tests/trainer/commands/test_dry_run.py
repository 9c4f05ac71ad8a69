import re

import pytest

from trainer.cli import main
from trainer.commands.init import write_project


def shown(capsys, *words):
    assert main(["run", "tiny_kk", "--dry-run", *words]) == 0
    return capsys.readouterr().out


def test_a_dry_run_shows_one_problem_and_trains_nothing(tmp_path, monkeypatch, capsys, tiny_policy):
    monkeypatch.chdir(tmp_path)
    out = shown(capsys, f"model.name_or_path={tiny_policy}", "rollout.max_new_tokens=12")
    lines = out.splitlines()
    assert "prompt (" in out and "<think>" in out
    assert any(re.match(r"tokens: \d+ people \| ", line) for line in lines)
    assert "completion (12 tokens, truncated):" in lines
    assert any(line.startswith("reward: -3, not correct (format -1, answer -2)") for line in lines)
    assert "steps:       50, each 12 prompts x 8 completions and 2 optimizer steps" in lines
    assert "evaluations: 6 of 400 completions" in lines
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_a_run_would_warn_of(capsys, tiny_policy):
    out = shown(
        capsys, f"model.name_or_path={tiny_policy}", "data.train.size=4", "rollout.max_new_tokens=8"
    )
    assert "12 prompts" in out and "4 problems" in out


def test_a_dry_run_stops_at_what_would_stop_a_run(capsys, tiny_policy):
    words = [
        "reward.functions={tests.rewards.own_rewards:nothing: 1}",
        f"model.name_or_path={tiny_policy}",
    ]
    assert main(["run", "tiny_kk", "--dry-run", *words]) == 2
    printed = capsys.readouterr().err
    assert "[reward-unusable]" in printed and " nothing" in printed


@pytest.mark.parametrize(
    ("eta", "token_filter", "steps"),
    [(0.0, "high_entropy", 2), (0.5, "high_entropy", 4), (0.5, "drop_low", 2)],
)
def test_lopti_doubles_the_optimizer_steps(capsys, tiny_policy, eta, token_filter, steps):
    words = [f"algorithm.lopti_eta={eta}", f"algorithm.token_filter={token_filter}"]
    words += ["rollout.max_new_tokens=4", f"model.name_or_path={tiny_policy}"]
    assert f"and {steps} optimizer steps" in shown(capsys, *words)


def test_a_dry_run_scores_texts_of_ones_own(capsys, tiny_policy):
    words = [f"model.name_or_path={tiny_policy}", "rollout.max_new_tokens=4"]
    shown(capsys, *words)
    own = "assume</think><answer>(1) Owen is a knave\n(2) Mia is a knave</answer>"
    assert main(["run", "tiny_kk", "--completion", own, "--completion", "no", *words]) == 0
    parts = capsys.readouterr().out.split("your completion:\n")
    assert len(parts) == 3
    assert "(1) Owen is a knave" in parts[1] and "reward: 3, correct" in parts[1]
    assert "    no\n" in parts[2] and "not correct" in parts[2]


def test_a_dry_run_finds_that_a_tracker_is_not_installed(capsys, monkeypatch):
    monkeypatch.setattr("trainer.tracking.writers.is_installed", lambda name: False)
    assert main(["run", "tiny_kk", "--dry-run", "tracking.report_to=[wandb]"]) == 2
    assert "[tracker-not-installed]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("run own/run.yaml --dry-run", "data-file-missing"),
        ("run own/run.yaml", "data-file-missing"),
        ("run tiny_kk model.name_or_path=./gone", "no-such-model"),
        ("evaluate tiny --sets test=gone.jsonl", "data-file-missing"),
    ],
)
def test_missing_files_are_found_before_torch(tmp_path, monkeypatch, capsys, command, code):
    write_project(tmp_path / "own", "smollm2-135m")
    monkeypatch.chdir(tmp_path)

    def slow(*words):
        raise AssertionError("torch is loaded")

    monkeypatch.setattr("trainer.commands.start.defer_interrupt", slow)
    monkeypatch.setattr("trainer.commands.evaluate.defer_interrupt", slow)
    assert main(command.split()) == 3
    error = capsys.readouterr().err
    assert f"[{code}]" in error and str(tmp_path) in error
    assert ("cd own" in error) == ("own/" in command)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
