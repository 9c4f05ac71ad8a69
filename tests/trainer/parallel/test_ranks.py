import json

import pytest
import torch
from safetensors.torch import save_file

from loptune.errors import ConfigError, StorageError
from tests.conftest import random_model
from tests.invariants.ranks import run_ranks
from tests.refusals import refused
from tests.run_cli import run_cli
from tests.trainer.parallel.test_deepspeed import config
from tests.warm import warm_programs
from trainer.checkpoint.any_layout import layout_metadata
from trainer.checkpoint.state import load_training_state
from trainer.parallel.fragments import Fragment
from trainer.parallel.ranks import Parallel, join_ranks


@pytest.mark.parametrize(
    ("settings", "lowest"),
    [
        ({"strategy": "deepspeed", "zero_stage": 0, "offload": "optimizer"}, "zero_stage 1"),
        ({"strategy": "deepspeed", "zero_stage": 2, "offload": "parameters"}, "zero_stage 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, lowest):
    with refused("offload-needs-zero", ConfigError, names=(lowest,)):
        config(**settings)


@pytest.mark.parametrize(
    ("ranks", "on_gloo", "device_id"),
    [("4", "", torch.device("cuda", 3)), ("1", "", None), ("4", "1", None)],
)
def test_a_rank_on_a_gpu_names_its_own_unless_it_is_alone(monkeypatch, ranks, on_gloo, device_id):
    monkeypatch.setenv("LOPTUNE_GLOO_ON_GPUS", on_gloo)  # for several ranks on one GPU
    passed = {}
    for name, value in {"RANK": "3", "WORLD_SIZE": ranks, "MASTER_ADDR": "10.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda *args, **options: passed.update(options)
    )
    groups = []
    monkeypatch.setattr("trainer.parallel.ranks._io_group", lambda: groups.append(dict(passed)))
    join_ranks(60, torch.device("cuda", 3))
    assert passed.get("device_id") == device_id
    assert passed["backend"] == ("gloo" if on_gloo else "nccl")
    assert groups == [passed]  # made at the start, after the default group


def test_the_io_group_is_made_at_once_in_the_users_process_group(monkeypatch):
    groups = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr("trainer.parallel.ranks._io_group", lambda: groups.append(1))
    join_ranks(60, torch.device("cpu"))
    assert groups == [1]


def test_a_checkpoint_without_the_file_of_a_rank_is_refused(tmp_path):
    for rank in (0, 2, 3):
        save_file({"a": torch.zeros(1)}, tmp_path / f"training_state-{rank}-of-4.safetensors")
    with refused("state-missing", StorageError) as caught:
        load_training_state(tmp_path, random_model(), None, Parallel())
    assert "training_state-1-of-4.safetensors" in str(caught.value)


def test_a_checkpoint_that_does_not_name_its_weights_is_refused(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "training_state-0-of-1.safetensors")
    with refused("no-layout", StorageError):
        load_training_state(tmp_path, random_model(), None, Parallel())


def test_a_checkpoint_of_other_weights_is_refused(tmp_path):
    fragment = Fragment(parameter="other", start=0, count=1, flat=0, offset=0)
    path = tmp_path / "training_state-0-of-1.safetensors"
    save_file({"a": torch.zeros(1)}, path, layout_metadata([fragment]))
    with refused("checkpoint-does-not-fit", StorageError):
        load_training_state(tmp_path, random_model(), None, Parallel())


@pytest.mark.slow
def test_two_ranks(tmp_path):
    first, second = run_ranks("tests.invariants.collectives_job", 2, {}, tmp_path)
    assert first["rank"] == [0, 2, True]
    assert second["rank"] == [1, 2, False]
    for rank in (first, second):
        assert rank["dealt"] == ["0a", "1a", "0b", "1b", "0c"]
        assert rank["sum"] == [2.0, 1.0]
        assert rank["any"] == [True, False]
        assert "[ranks-without-strategy]" in rank["without a strategy"]
        assert "[ranks-disagree]" in rank["other seeds"]
        assert "seed is 0" in rank["other seeds"] and "1 on rank 1" in rank["other seeds"]
        assert "[ranks-disagree]" in rank["other sets"] and "evaluation.sets" in rank["other sets"]


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def short_run(tiny_policy):
    return {
        "model.name_or_path": str(tiny_policy),
        "parallel.strategy": "deepspeed",
        "rollout.prompts_per_step": 2,
        "rollout.max_new_tokens": 8,
        "optim.update_batch_size": 16,
        "evaluation.sets": {"dev": {"split": "dev", "size": 3}},
        "max_steps": 1,
    }


THREE_RUNS = """
import json, os, sys
from pathlib import Path
from trainer import train
settings, runs_dir = json.loads(sys.argv[1]), sys.argv[2]
settings["tracking.offline"] = True
first = train("tiny_kk", settings, name="first", runs_dir=runs_dir)
again = train(f"{runs_dir}/first/config.yaml", {"max_steps": 2}, name="first",
              runs_dir=runs_dir, resume=True)
other = train("tiny_kk", settings, runs_dir=runs_dir)
Path("rank-" + os.environ.get("RANK", "0")).write_text(repr(first))
sys.stdout.write(f"{first.state} {again.state} {again.step} {other.state} {other.name}\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], [*TORCHRUN, "-m"]], ids=["one process", "two ranks"])
def test_a_script_trains_one_run_after_the_other(launcher, tiny_policy, tmp_path):
    (tmp_path / "script.py").write_text(THREE_RUNS)
    runs = tmp_path / "runs"
    words = ["script", json.dumps(short_run(tiny_policy)), runs]
    ranks = {"PYTHON_EXEC": str(warm_programs() / "python")}
    done = run_cli(*launcher, *words, cwd=tmp_path, timeout=500, environment=ranks)
    assert done.returncode == 0, done.stderr[-3000:]
    # the first rank's
    answer = next(line for line in done.stdout.splitlines() if line.startswith("done done 2 done"))
    assert (runs / answer.split()[-1] / "config.yaml").is_file(), done.stdout
    summaries = [path.read_text() for path in tmp_path.glob("rank-*")]
    assert len(summaries) == (2 if launcher else 1)
    assert len(set(summaries)) == 1 and "state='done'" in summaries[0]


@pytest.mark.slow
def test_the_command_under_torchrun(tiny_policy, tmp_path):
    overrides = [f"{key}={value}" for key, value in short_run(tiny_policy).items()]
    command = ["trainer", "run", "tiny_kk", *overrides, "--runs-dir", tmp_path, "--offline"]
    launcher = {"ACCELERATE_USE_CPU": "true"}  # of `accelerate launch --cpu`
    done = run_cli(*TORCHRUN, "-m", *command, timeout=200, environment=launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert sum(line.startswith("step 1/1") for line in lines) == 1  # of the first rank alone
    (run_dir,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert f"model:    {run_dir / 'checkpoints' / 'step-1'}" in lines
    assert (
        len(list((run_dir / "checkpoints" / "step-1").glob("training_state-*-of-2.safetensors")))
        == 2
    )
