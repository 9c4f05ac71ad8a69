import pytest

from trainer.cli import main


def shown(capsys, *words):
    assert main(["run", "tiny_kk", "--dry-run", *words]) == 0
    return capsys.readouterr().out


def test_a_dry_run_shows_one_problem_and_trains_nothing(tmp_path, monkeypatch, capsys, tiny_policy):
    monkeypatch.chdir(tmp_path)
    out = shown(capsys, f"model.name_or_path={tiny_policy}", "rollout.max_new_tokens=12")
    lines = out.splitlines()
    assert "prompt (" in out and "<think>" in out
    assert any(line.startswith("tokens: people | ") for line in lines)
    assert "completion (12 tokens, truncated there):" in lines
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
    assert "has no nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("eta", "token_filter", "steps"),
    [(0.0, "high_entropy", 2), (0.5, "high_entropy", 4), (0.5, "drop_low", 2)],
)
def test_lopti_doubles_the_optimizer_steps(capsys, tiny_policy, eta, token_filter, steps):
    words = [f"algorithm.lopti_eta={eta}", f"algorithm.token_filter={token_filter}"]
    words += ["rollout.max_new_tokens=4", f"model.name_or_path={tiny_policy}"]
    assert f"and {steps} optimizer steps" in shown(capsys, *words)
