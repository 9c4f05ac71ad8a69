"""A sweep of the real trainer, with adapters, from the command line to the report and on to the
winner.

Its driver is killed in the first trial: resumed, it ends as if left alone. Fresh seeds confirm what
it found.
"""

import mlflow
import pytest
import torch
import yaml
from safetensors.torch import load_file

from sweep.cli import main
from sweep.record.folder import sweep_folder
from tests.paths import DATA
from tests.run_cli import start_cli
from tests.sweep.harness import kill, metrics, results, states, wait_until, wait_until_gone
from trainer.checkpoint.on_disk import intact_checkpoints
from trainer.policy.adapters import WEIGHTS_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPACE = DATA / "adapters_space.yaml"
STEPS = 2  # of its trials
TRIALS = [f"c00{number}-s0" for number in range(3)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder with the sweep, whose driver was killed in the first trial, and what the second
    one printed.
    """
    runs = tmp_path_factory.mktemp("runs")
    with start_cli("sweep", "run", SPACE, "--runs-dir", runs, "--cpus", 2) as process:
        first = runs / "tiny" / "trials" / TRIALS[0] / "checkpoints" / "step-1"
        wait_until(first.exists, 300, "a checkpoint of the first trial")
        kill(process)
    wait_until_gone(sweep_folder(runs, "tiny"))
    assert results(runs / "tiny") == {}
    with start_cli("sweep", "resume", "tiny", "--runs-dir", runs, "--cpus", 2) as process:
        out, err = process.communicate(timeout=500)
    assert process.returncode == 0, out + err
    return runs, out


def test_every_trial_trained_once_and_its_score_is_the_mean(finished):
    sweep = finished[0] / "tiny"
    out = finished[1]
    assert states(sweep) == dict.fromkeys(TRIALS, "COMPLETE")
    assert "3 trials: 3 complete, 0 stopped early, 0 failed" in out
    assert sorted(path.name for path in (sweep / "trials").iterdir()) == TRIALS
    for trial in TRIALS:
        lines = metrics(sweep, trial)
        assert [line["step"] for line in lines if "time/step" in line] == list(range(1, STEPS + 1))
        evaluated = {
            line["step"]: line["eval/accuracy"] for line in lines if "eval/accuracy" in line
        }
        assert list(evaluated) == list(range(STEPS + 1))  # before the first step and after each
        assert results(sweep)[trial]["score"] == pytest.approx(
            sum(evaluated.values()) / (STEPS + 1)
        )
    second = yaml.safe_load((sweep / "trials" / TRIALS[1] / "config.yaml").read_text())
    assert (second["algorithm"]["advantage"]["name"], second["algorithm"]["lopti_eta"]) == (
        "reinforce_plus_plus",
        0.5,
    )
    assert second["rollout"]["prompts_per_step"] == 2


def test_trials_that_have_ended_keep_weights_alone(finished):
    for trial in TRIALS:
        kept = list(intact_checkpoints(finished[0] / "tiny" / "trials" / trial / "checkpoints"))
        assert [int(checkpoint.name[5:]) for checkpoint in kept] == [*range(STEPS, 0, -1)]
        for checkpoint in kept:
            assert (checkpoint / WEIGHTS_FILE).is_file()
            assert not list(checkpoint.glob("training_state*.safetensors"))


def test_the_killed_trial_equals_a_run_of_what_is_exported_of_it(finished, tmp_path, typed):
    runs = finished[0]
    best = tmp_path / "best.yaml"
    export = [
        "export",
        "tiny",
        "--configuration",
        "0",
        "--output",
        str(best),
        "--runs-dir",
        str(runs),
    ]
    assert main(export) == 0
    typed("trainer run", best, "--name", "alone", "--offline")
    killed, alone = (
        load_file(run / "checkpoints" / f"step-{STEPS}" / WEIGHTS_FILE)
        for run in (runs / "tiny" / "trials" / TRIALS[0], tmp_path / "alone")
    )
    # layers, linear layers of each, factors
    assert list(killed) == list(alone) and len(killed) == 2 * 7 * 2
    assert all(torch.equal(killed[name], alone[name]) for name in killed)
    assert any(tensor.any() for name, tensor in killed.items() if "lora_B" in name), (
        "it has not learned anything"
    )


def test_mlflow_has_the_parent_its_report_and_every_trial(finished):
    runs, out = finished
    client = mlflow.MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    recorded = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    (parent,) = (run for run in recorded if run.info.run_name == "sweep tiny")
    children = [
        run for run in recorded if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    ]
    assert sorted(run.data.tags["loptune.trial"] for run in children) == TRIALS
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    artifacts = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"report.html", "space.lock.yaml"} <= artifacts
    assert f"report: {runs / 'tiny' / 'report' / 'report.html'}" in out
    for run in children:
        score = results(runs / "tiny")[run.data.tags["loptune.trial"]]["score"]
        assert run.data.metrics["final/score"] == pytest.approx(score)
        assert run.data.tags["loptune.state"] == "COMPLETE"
        steps = {
            point.step for point in client.get_metric_history(run.info.run_id, "rollout/reward")
        }
        assert sorted(steps) == list(range(1, STEPS + 1))


def test_what_adapters_found_is_confirmed_on_fresh_seeds(finished, capfd):
    runs, _ = finished
    confirm = ["confirm", "tiny", "--finalists", "1", "--seeds", "1"]
    assert main([*confirm, "--runs-dir", str(runs), "--cpus", "2"]) == 0
    assert "on fresh seeds, " in capfd.readouterr().out
    for trial in ("c000-s1", "c001-s1"):
        assert any("eval/accuracy/test" in line for line in metrics(runs / "tiny-confirm", trial))
    page = (runs / "tiny" / "report" / "report.html").read_text()
    assert "Finalists on fresh seeds and the held-out test" in page and "On fresh seeds: " in page
