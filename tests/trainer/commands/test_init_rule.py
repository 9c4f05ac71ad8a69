from tests.run_cli import run_cli
from trainer.config.schema import load_config


def test_the_rule_passes_its_test_trains_and_is_compared_with_grpo(tmp_path, typed, monkeypatch):
    folder = tmp_path / "mine"
    typed("trainer init --rule", folder)
    typed("trainer init --rule", folder, code=4)  # nothing is written over
    tested = run_cli("pytest", "-q", cwd=folder)
    assert tested.returncode == 0, tested.stdout
    small = [
        "max_steps=1",
        "rollout.prompts_per_step=4",
        "optim.update_batch_size=16",
        "evaluation.at_start=false",
        "evaluation.sets.dev.size=4",
    ]
    rule = ["algorithm.loss=my_rules:Cautious", "algorithm.loss.strength=0.3"]
    trained = run_cli("trainer", "run", "tiny_kk", *rule, *small, "--name", "own", cwd=folder)
    assert trained.returncode == 0, trained.stderr
    monkeypatch.chdir(folder)
    config = load_config("runs/own/config.yaml")
    assert (config.algorithm.loss.name, config.algorithm.loss.strength) == (
        "my_rules:Cautious",
        0.3,
    )
    planned = run_cli("sweep", "plan", "rule_space.yaml", cwd=folder)
    assert planned.returncode == 0, planned.stderr
