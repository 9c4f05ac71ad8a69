"""A sweep that trains adapters: killed and resumed it ends as if left alone, and full weights confirm it."""

from pathlib import Path

import mlflow
import pytest
import torch
import yaml
from safetensors.torch import load_file

from sweep.cli import main
from sweep.record.folder import sweep_folder
from tests.run_cli import start_cli
from tests.sweep.harness import kill, metrics, results, wait_until, wait_until_gone
from trainer.api import train
from trainer.policy.adapters import WEIGHTS_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 3
SPACE = {
    "name": "adapters",
    "trainer": {
        "preset": "tiny_kk",
        "overrides": {
            "model.lora.r": 4,
            "optim.lr": 1e-2,
            "max_steps": STEPS,
            "evaluation.every_steps": 1,
            "checkpoint.every_steps": 1,
            "rollout.prompts_per_step": 2,
            "rollout.group_size": 4,
            "optim.update_batch_size": 8,
            "evaluation.sets": {"dev": {"source": "generated", "split": "dev", "people": [2], "size": 4}},
        },
    },
    "parameters": {"algorithm.ar_alpha": {"uniform": [0.0, 0.5]}},
    "baselines": [{"algorithm.ar_alpha": 0.0}, {"algorithm.ar_alpha": 0.5}],
    "search": {"sampler": "random", "configurations": 0},
    "limits": {"max_concurrent": 1},
    "full": {"overrides": {"optim.lr": 1e-3}},
}
TRIALS = ["c000-s0", "c001-s0"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sweep, whose driver was killed in the first trial and which was resumed."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "space.yaml").write_text(yaml.safe_dump(SPACE))
    with start_cli("sweep", "run", folder / "space.yaml", "--runs-dir", folder, "--cpus", 2) as process:
        first = folder / "adapters" / "trials" / TRIALS[0] / "checkpoints" / "step-1"
        wait_until(first.exists, 300, "a checkpoint of the first trial")
        kill(process)
    wait_until_gone(sweep_folder(folder, "adapters"))
    assert results(folder / "adapters") == {}
    assert main(["resume", "adapters", "--runs-dir", str(folder), "--cpus", "2"]) == 0
    return folder


def test_every_trial_is_there_once_with_every_step(runs: Path) -> None:
    sweep = runs / "adapters"
    assert {trial: one["state"] for trial, one in results(sweep).items()} == dict.fromkeys(TRIALS, "COMPLETE")
    assert sorted(path.name for path in (sweep / "trials").iterdir()) == TRIALS
    for trial in TRIALS:
        lines = metrics(sweep, trial)
        assert [line["step"] for line in lines if "time/step" in line] == list(range(1, STEPS + 1))
        assert [line["step"] for line in lines if "eval/accuracy" in line] == list(range(STEPS + 1))


def test_the_adapter_of_the_killed_trial_is_that_of_an_undisturbed_run(runs: Path, tmp_path: Path) -> None:
    killed = runs / "adapters" / "trials" / TRIALS[0]
    train(killed / "config.yaml", ["tracking.offline=true"], name="alone", runs_dir=tmp_path)
    own, other = (
        load_file(run / "checkpoints" / f"step-{STEPS}" / WEIGHTS_FILE) for run in (killed, tmp_path / "alone")
    )
    assert list(own) == list(other) and len(own) == 2 * 7 * 2  # layers, linear layers of each, factors
    assert all(torch.equal(own[name], other[name]) for name in own)
    assert any(tensor.any() for name, tensor in own.items() if "lora_B" in name), "it has not learnt anything"


def test_full_weights_confirm_what_adapters_found(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["confirm", "adapters", "--full", "--seeds", "1", "--runs-dir", str(runs), "--cpus", "2"]) == 0
    out = capfd.readouterr().out
    assert "With full weights, #" in out
    for number, alpha in enumerate((0.0, 0.5)):
        trial = runs / "adapters-full" / "trials" / f"c{number:03d}-s1"
        config = yaml.safe_load((trial / "config.yaml").read_text())
        assert (config["model"]["lora"]["r"], config["optim"]["lr"]) == (0, 1e-3)
        assert config["algorithm"]["ar_alpha"] == alpha
        assert (trial / "checkpoints" / f"step-{STEPS}" / "model.safetensors").is_file()
    page = (runs / "adapters" / "report" / "report.html").read_text()
    assert "Finalists of the search with adapters, with full weights on unseen seeds" in page
    assert "On fresh seeds with full weights alone: " in page
    client = mlflow.MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    found = client.search_runs(
        [client.get_experiment_by_name("adapters").experiment_id], "tags.`loptune.weights` = 'full'"
    )
    assert len(found) == 3  # the sweep adapters-full and its two trials
