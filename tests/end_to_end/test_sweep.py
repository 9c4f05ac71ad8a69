"""A sweep of the real trainer on the embedded policy, from the command line to the report."""

import json
from pathlib import Path

import mlflow
import pytest
import yaml

from tests.run_cli import run_cli
from tests.sweep.harness import metrics, results
from trainer.checkpoint.files import intact_checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPACE = {
    "name": "tiny",
    "trainer": {
        "preset": "tiny_kk",
        "overrides": {
            "max_steps": 2,
            "evaluation.every_steps": 1,
            "checkpoint.every_steps": 1,
            "rollout.prompts_per_step": 2,
            "rollout.group_size": 2,
            "optim.update_batch_size": 4,
            "evaluation.sets": {"dev": {"source": "generated", "split": "dev", "people": [2], "size": 8}},
        },
    },
    "parameters": {
        "algorithm.advantage": {"choice": ["grpo", "reinforce_plus_plus"]},
        "lopti": {"choice": [False, True]},
        "algorithm.lopti_eta": {"uniform": [0.2, 0.9], "when": {"lopti": True}, "else": 0.0},
    },
    "baselines": [
        {"algorithm.advantage": "grpo", "lopti": False},
        {"algorithm.advantage": "reinforce_plus_plus", "lopti": True, "algorithm.lopti_eta": 0.5},
    ],
    "search": {"sampler": "random", "configurations": 1},
    "limits": {"max_concurrent": 2},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    runs = tmp_path_factory.mktemp("runs")
    (runs / "space.yaml").write_text(yaml.safe_dump(SPACE))
    done = run_cli("sweep", "run", runs / "space.yaml", "--runs-dir", runs, "--cpus", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    return runs, done.stdout


def test_every_trial_trained_to_its_end(finished: tuple[Path, str]) -> None:
    runs, out = finished
    assert [result["state"] for result in results(runs / "tiny").values()] == ["COMPLETE"] * 3
    assert "3 trials: 3 complete, 0 stopped early, 0 failed" in out


def test_the_score_is_the_mean_of_the_evaluations(finished: tuple[Path, str]) -> None:
    runs, _ = finished
    for trial, result in results(runs / "tiny").items():
        values = [row["eval/accuracy"] for row in metrics(runs / "tiny", trial) if "eval/accuracy" in row]
        assert len(values) == 3  # before the first step and after each
        assert result["score"] == pytest.approx(sum(values) / 3)


def test_trials_that_have_ended_keep_weights_alone(finished: tuple[Path, str]) -> None:
    runs, _ = finished
    for trial in results(runs / "tiny"):
        kept = list(intact_checkpoints(runs / "tiny" / "trials" / trial / "checkpoints"))
        assert kept[0].name == "step-2"
        assert len(kept) <= 2  # the best may be the last
        for checkpoint in kept:
            assert (checkpoint / "model.safetensors").is_file()
            assert not list(checkpoint.glob("training_state*.safetensors"))


def test_trials_train_what_they_were_given(finished: tuple[Path, str]) -> None:
    runs, _ = finished
    second = yaml.safe_load((runs / "tiny" / "trials" / "c001-s0" / "config.yaml").read_text())
    assert second["algorithm"]["advantage"] == "reinforce_plus_plus"
    assert second["algorithm"]["lopti_eta"] == 0.5
    assert second["rollout"]["prompts_per_step"] == 2


def test_mlflow_has_the_parent_its_report_and_every_trial(finished: tuple[Path, str]) -> None:
    runs, out = finished
    client = mlflow.MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    found = client.search_runs([experiment.experiment_id])
    parent = next(run for run in found if "mlflow.parentRunId" not in run.data.tags)
    children = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(found) == 4
    assert len(children) == 3
    assert {run.info.status for run in found} == {"FINISHED"}
    artifacts = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"report.html", "space.lock.yaml"} <= artifacts
    assert f"report: {runs / 'tiny' / 'report' / 'report.html'}" in out
    for run in children:
        assert run.data.metrics["final/score"] == pytest.approx(
            results(runs / "tiny")[run.data.tags["loptune.trial"]]["score"]
        )


def test_the_winner_runs_without_a_sweep(finished: tuple[Path, str]) -> None:
    runs, _ = finished
    best = runs / "best.yaml"
    assert run_cli("sweep", "export", "tiny", "--runs-dir", runs, "--output", best).returncode == 0
    done = run_cli("trainer", "run", best, "--name", "again", "--runs-dir", runs, "--offline", timeout=120)
    assert done.returncode == 0, done.stderr
    status = json.loads(run_cli("sweep", "status", "tiny", "--runs-dir", runs, "--json").stdout)
    winner = f"c{status['best']['configuration']:03d}-s0"
    again = [json.loads(line) for line in (runs / "again" / "metrics.jsonl").read_text().splitlines()]
    # The same trainer on the same configuration and seed: the same numbers.
    assert [row.get("eval/accuracy") for row in again] == [
        row.get("eval/accuracy") for row in metrics(runs / "tiny", winner)
    ]
