import json
import re

import pytest

from sweep.commands.winner import finalist_count
from tests.ports import quiet_port
from tests.run_cli import run_cli
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.harness import SEVERAL_RANKS
from tests.warm import warm_programs
from trainer.config.schema import apply_overrides, load_config, save_config


def test_export_writes_a_file_that_the_trainer_reads(tmp_path, typed):
    write_sweep(tmp_path)
    output = tmp_path / "best.yaml"
    assert f"trainer run {output}" in typed("sweep export demo --output", output)
    config = load_config(str(output))
    assert config.algorithm.ar_alpha == 0.2
    assert config.max_steps == 4
    typed("sweep export demo --output", output, code=2)  # never overwritten


def test_an_exported_file_is_started_on_as_many_ranks(tmp_path, typed):
    two = {"workers_per_trial": 2}
    write_sweep(tmp_path, "demo", {0: {0: 0.5}, 1: {0: 0.6}}, trainer=SEVERAL_RANKS, resources=two)
    output = tmp_path / "winner.yaml"
    line = typed("sweep export demo --output", output).splitlines()[-1]
    assert line == f"torchrun --nproc-per-node 2 --shutdown-timeout 900 -m trainer run {output}"
    assert load_config(str(output)).parallel.strategy == "ddp"


@pytest.mark.slow
def test_accelerate_starts_the_ranks_too(tiny_policy, tmp_path):
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
    launch += ["--main_process_port", str(quiet_port())]
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
        environment={"PYTHON_EXEC": str(warm_programs() / "python")},
    )
    assert out.returncode == 0, out.stderr
    parts = sorted(
        path.name for path in (tmp_path / "two/checkpoints/step-1").glob("training_state-*")
    )
    assert parts == ["training_state-0-of-2.safetensors", "training_state-1-of-2.safetensors"]


def test_more_finalists_than_there_are(tmp_path, typed):
    write_sweep(tmp_path)
    printed = typed("sweep confirm demo --finalists 99", code=2)
    assert "[too-many-finalists]" in printed and " 99, " in printed and " 1 " in printed


def test_one_of_several_plain_configurations_is_the_baseline(tmp_path, monkeypatch):
    sweep = write_sweep(tmp_path)
    monkeypatch.setattr("sweep.commands.winner.is_baseline", lambda spec, configuration: True)
    assert finalist_count(sweep, 1) == 1


def test_export_without_a_winner_is_refused(tmp_path, typed):
    write_sweep(tmp_path, "demo", {0: {0: "out of memory"}})
    assert "[nothing-complete]" in typed("sweep export demo", code=3)


def test_export_follows_fresh_seeds_and_any_configuration_can_be_named(tmp_path, typed):
    write_sweep(tmp_path)
    fresh = {0: {2: 0.7, 3: 0.71, 4: 0.72}, 1: {2: 0.5, 3: 0.52, 4: 0.5}}
    confirms = {"sweep": "demo", "configurations": [0, 2]}
    write_sweep(tmp_path, "demo-confirm", fresh, confirms=confirms)
    for options, alpha in (("", 0.0), ("--configuration 2", 0.2), ("--baseline", 0.0)):
        output = tmp_path / f"{options}.yaml"
        printed = typed(f"sweep export demo {options} --output", output)
        assert load_config(str(output)).algorithm.ar_alpha == alpha
        assert "Keep the baseline #0" in printed
        assert printed.startswith("best: ") == (alpha == 0.0)
        assert ("not chosen by the evidence: Keep" in printed) == (alpha != 0.0)


@pytest.mark.parametrize(
    ("number", "reason"),
    [(99, "no configuration 99"), (1, "failed"), (2, "stopped early"), (3, "still running")],
)
def test_export_says_why_a_configuration_is_not_complete(tmp_path, typed, number, reason):
    write_sweep(tmp_path, pruned=[2])
    output = tmp_path / "winner.yaml"
    printed = typed(f"sweep export demo --configuration {number} --output", output, code=3)
    assert "[configuration-not-complete]" in printed and reason in printed
    assert not output.exists()


def test_export_of_a_baseline_that_the_sweep_does_not_have_is_refused(tmp_path, monkeypatch, typed):
    write_sweep(tmp_path, baselines=[])
    monkeypatch.setattr("sweep.commands.winner.is_baseline", lambda spec, configuration: False)
    printed = typed("sweep export demo --baseline", code=3)
    assert "[no-baseline]" in printed and "sweep export demo --configuration" in printed


def test_export_asks_where_fresh_seeds_tell_nothing_apart(tmp_path, typed):
    write_sweep(tmp_path)
    fresh = {0: {2: 0.5, 3: 0.6, 4: 0.4}, 1: {2: 0.6, 3: 0.5, 4: 0.46}}
    confirms = {"sweep": "demo", "configurations": [0, 2]}
    write_sweep(tmp_path, "demo-confirm", fresh, confirms=confirms)
    refused = typed("sweep export demo", code=3)
    error = refused.splitlines()[0]
    assert "Undecided" in error and "Confirmed" not in error
    commands = re.findall(r"^ *#(\d) .*: python -m (sweep export .*)$", refused, re.M)
    assert [number for number, _ in commands] == ["0", "2"]
    for number, command in commands:
        typed(f"{command} --output", tmp_path / f"{number}.yaml")
        exported = load_config(str(tmp_path / f"{number}.yaml"))
        assert exported.algorithm.ar_alpha == int(number) / 10
    assert json.loads(typed("sweep status demo --json"))["best"] is None
