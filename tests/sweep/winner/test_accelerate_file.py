"""The exported launcher file: accelerate reads it, and it starts the ranks."""

from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from sweep.cli import main
from sweep.winner.accelerate_file import write_accelerate_config
from tests.run_cli import run_cli
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.harness import SEVERAL_RANKS
from trainer.config.schema import apply_overrides, load_config, save_config


@pytest.mark.parametrize(
    ("overrides", "workers", "kind", "zero"),
    [
        ({}, 1, "NO", {}),
        ({"parallel.strategy": "ddp"}, 4, "MULTI_GPU", {}),
        (
            {"parallel.strategy": "deepspeed", "parallel.zero_stage": 3, "parallel.offload": "parameters"},
            8,
            "DEEPSPEED",
            {"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "cpu"},
        ),
        (
            {"parallel.strategy": "deepspeed", "parallel.zero_stage": 2, "model.dtype": "bfloat16"},
            4,
            "DEEPSPEED",
            {"zero_stage": 2, "offload_optimizer_device": "none", "offload_param_device": "none"},
        ),
    ],
)
def test_accelerate_reads_the_file(
    tmp_path: Path, overrides: dict[str, Any], workers: int, kind: str, zero: dict[str, Any]
) -> None:
    config = apply_overrides(load_config("tiny_kk"), overrides)
    path = write_accelerate_config(config, workers, tmp_path / "winner.yaml")
    assert path == tmp_path / "winner-accelerate.yaml"
    read = load_config_from_file(str(path))
    assert (read.num_processes, read.distributed_type, read.use_cpu) == (workers, kind, False)
    assert read.mixed_precision == ("bf16" if config.model.dtype == "bfloat16" else "no")
    assert zero.items() <= read.deepspeed_config.items()


def test_export_prints_the_line_that_starts_the_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(
        tmp_path, "demo", {0: {0: 0.5}, 1: {0: 0.6}}, trainer=SEVERAL_RANKS, resources={"workers_per_trial": 2}
    )
    output = tmp_path / "winner.yaml"
    assert main(["export", "demo", "--runs-dir", str(tmp_path), "--output", str(output)]) == 0
    launcher = tmp_path / "winner-accelerate.yaml"
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == f"accelerate launch --config_file {launcher} -m trainer run {output}"
    assert load_config_from_file(str(launcher)).num_processes == 2
    assert load_config(str(output)).parallel.strategy == "ddp"


@pytest.mark.slow
def test_the_launcher_starts_two_ranks(tiny_policy: Path, tmp_path: Path) -> None:
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
    config = apply_overrides(load_config("tiny_kk"), overrides)
    run_file = tmp_path / "winner.yaml"
    save_config(config, run_file)
    launcher = write_accelerate_config(config, 2, run_file)
    launch = ["accelerate.commands.accelerate_cli", "launch", "--config_file", launcher]
    out = run_cli(*launch, "-m", "trainer", "run", run_file, "--name", "two", "--runs-dir", tmp_path, timeout=200)
    assert out.returncode == 0, out.stderr
    parts = sorted(path.name for path in (tmp_path / "two/checkpoints/step-1").glob("training_state-*"))
    assert parts == ["training_state-0-of-2.safetensors", "training_state-1-of-2.safetensors"]
