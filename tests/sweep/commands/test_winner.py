import json
from pathlib import Path

import pytest

from sweep.cli import main
from sweep.commands.winner import _finalists
from sweep.record.sweep_record import open_sweep
from tests.run_cli import run_cli
from tests.sweep.ended_sweeps import SCORES, write_sweep
from tests.sweep.harness import SEVERAL_RANKS
from trainer.config.schema import apply_overrides, load_config, save_config


def test_export_writes_a_file_that_the_trainer_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(tmp_path, "demo", SCORES, seeds=[0, 1])
    output = tmp_path / "best.yaml"
    arguments = ["export", "demo", "--runs-dir", str(tmp_path), "--output", str(output)]
    assert main(arguments) == 0
    config = load_config(str(output))
    assert config.algorithm.ar_alpha == 0.2
    assert config.max_steps == 4
    assert f"trainer run {output}" in capsys.readouterr().out
    assert main(arguments) == 2  # never overwritten


def test_an_exported_file_is_started_on_as_many_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = {"workers_per_trial": 2}
    write_sweep(tmp_path, "demo", {0: {0: 0.5}, 1: {0: 0.6}}, trainer=SEVERAL_RANKS, resources=two)
    output = tmp_path / "winner.yaml"
    assert main(["export", "demo", "--runs-dir", str(tmp_path), "--output", str(output)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == f"torchrun --nproc-per-node 2 -m trainer run {output}"
    assert load_config(str(output)).parallel.strategy == "ddp"


@pytest.mark.slow
def test_accelerate_starts_the_ranks_too(tiny_policy: Path, tmp_path: Path) -> None:
    overrides = {
        "model.name_or_path": str(tiny_policy),
        "rollout.prompts_per_step": 4,
        "optim.update_batch_size": 8,
        "evaluation.sets": {"dev": {"source": "generated", "split": "dev", "size": 4}},
        "evaluation.every_steps": 1,
        "checkpoint.every_steps": 1,
        "max_steps": 1,
        "parallel.strategy": "deepspeed",
        "tracking.offline": True,
    }
    run_file = tmp_path / "winner.yaml"
    save_config(apply_overrides(load_config("tiny_kk"), overrides), run_file)
    # `--multi_gpu` is found out by itself where there are GPUs; it starts the ranks as torchrun
    # does.
    launch = ["accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--main_process_port", "0"]  # any free one
    out = run_cli(
        *launch,
        "-m",
        "trainer",
        "run",
        run_file,
        "--name",
        "two",
        "--runs-dir",
        tmp_path,
        timeout=200,
    )
    assert out.returncode == 0, out.stderr
    parts = sorted(
        path.name for path in (tmp_path / "two/checkpoints/step-1").glob("training_state-*")
    )
    assert parts == ["training_state-0-of-2.safetensors", "training_state-1-of-2.safetensors"]


def test_more_finalists_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "demo", SCORES, seeds=[0, 1])
    assert main(["confirm", "demo", "--runs-dir", str(tmp_path), "--finalists", "99"]) == 2
    assert (
        "complete configurations besides the baseline: 1, fewer than 99" in capsys.readouterr().err
    )


def test_one_of_several_plain_configurations_is_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(tmp_path, "demo", SCORES, seeds=[0, 1])
    monkeypatch.setattr("sweep.commands.winner.is_baseline", lambda spec, configuration: True)
    assert _finalists(open_sweep(tmp_path, "demo"), 1) == 1


def test_export_without_a_winner_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(tmp_path, "demo", {0: {0: "out of memory"}})
    assert main(["export", "demo", "--runs-dir", str(tmp_path)]) == 3
    assert "demo: no configuration is complete yet" in capsys.readouterr().err


def test_export_follows_fresh_seeds_and_any_configuration_can_be_named(tmp_path, capsys):
    write_sweep(tmp_path, "demo", SCORES, seeds=[0, 1])
    fresh = {0: {2: 0.7, 3: 0.71, 4: 0.72}, 1: {2: 0.5, 3: 0.52, 4: 0.5}}
    confirms = {"sweep": "demo", "configurations": [0, 2]}
    write_sweep(tmp_path, "demo-confirm", fresh, seeds=[2, 3, 4], confirms=confirms)
    for options, alpha in (([], 0.0), (["--configuration", "2"], 0.2), (["--baseline"], 0.0)):
        output = tmp_path / f"{alpha}{len(options)}.yaml"
        assert (
            main(["export", "demo", "--runs-dir", str(tmp_path), "--output", str(output), *options])
            == 0
        )
        assert load_config(str(output)).algorithm.ar_alpha == alpha
        assert "Keep the baseline #0" in capsys.readouterr().out
    assert main(["export", "demo", "--runs-dir", str(tmp_path), "--configuration", "99"]) == 3
    assert "configuration 99 is not complete" in capsys.readouterr().err


def test_export_asks_where_fresh_seeds_tell_nothing_apart(tmp_path, capsys):
    write_sweep(tmp_path, "demo", SCORES, seeds=[0, 1])
    fresh = {0: {2: 0.5, 3: 0.6, 4: 0.4}, 1: {2: 0.6, 3: 0.5, 4: 0.46}}
    confirms = {"sweep": "demo", "configurations": [0, 2]}
    write_sweep(tmp_path, "demo-confirm", fresh, seeds=[2, 3, 4], confirms=confirms)
    assert main(["export", "demo", "--runs-dir", str(tmp_path)]) == 3
    error, _, hint = capsys.readouterr().err.splitlines()
    assert (
        "the evidence names no configuration. Not confirmed: seed noise could explain the "
        "difference" in error
    )
    assert hint.endswith("--configuration N or --baseline")
    assert main(["status", "demo", "--runs-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] is None
