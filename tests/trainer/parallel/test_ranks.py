import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.invariants.ranks import ROOT, run_ranks
from tests.trainer.algorithm.batches import make_batch
from trainer.algorithm.batching import plan_update_batches
from trainer.checkpoint import load_training_state
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.errors import ConfigError, MissingError, StorageError
from trainer.parallel.deepspeed import zero_config
from trainer.parallel.ranks import DistributedParallel, Parallel
from trainer.parallel.start import make_parallel

CPU = torch.device("cpu")


def config(**parallel) -> TrainConfig:
    return apply_overrides(TrainConfig(), {f"parallel.{key}": value for key, value in parallel.items()})


def test_one_process_is_a_world_of_its_own(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for strategy in ("none", "ddp"):
        parallel = make_parallel(config(strategy=strategy))
        assert type(parallel) is Parallel
        assert (parallel.rank, parallel.world_size, parallel.is_main) == (0, 1, True)
    assert parallel.gather([3, 1, 2]) == [3, 1, 2]
    assert parallel.sum(torch.tensor([2.0])).tolist() == [2.0]
    assert [parallel.any(True), parallel.any(False)] == [True, False]


def test_processes_without_a_strategy_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"4 processes were started, but .* is none"):
        make_parallel(TrainConfig())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "ddp", "offload": "optimizer"}, "needs strategy: deepspeed"),
        ({"strategy": "deepspeed", "zero_stage": 0, "offload": "optimizer"}, "needs zero_stage 1 or higher"),
        ({"strategy": "deepspeed", "zero_stage": 2, "offload": "parameters"}, "needs zero_stage 3 or higher"),
        ({"strategy": "fsdp"}, "deepspeed"),
        ({"zero_stage": 4}, "zero_stage"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        config(**settings)


def test_zero_configuration():
    in_float32 = zero_config(config(strategy="deepspeed", zero_stage=2), CPU)
    assert in_float32["zero_optimization"] == {"stage": 2}
    assert in_float32["gradient_accumulation_steps"] == 1
    assert in_float32["gradient_clipping"] == 1.0
    assert in_float32["bf16"] == {"enabled": False}

    settings = config(strategy="deepspeed", zero_stage=3, offload="parameters")
    low = zero_config(apply_overrides(settings, {"model.dtype": "bfloat16"}), torch.device("cuda"))
    assert low["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert low["data_types"] == {"grad_accum_dtype": "fp32"}
    host = {"device": "cpu", "pin_memory": True}
    assert low["zero_optimization"] == {"stage": 3, "offload_optimizer": host, "offload_param": host}

    # Stage 0 is clipped by the trainer, and keeps float32 weights whatever it computes in.
    replicated = config(strategy="deepspeed", zero_stage=0)
    replicated = zero_config(apply_overrides(replicated, {"model.dtype": "bfloat16"}), CPU)
    assert (replicated["gradient_clipping"], replicated["bf16"]) == (0.0, {"enabled": False})


def test_every_rank_gets_the_largest_number_of_microbatches():
    # Update batches of 4 rows; the other rank has 1 and 5 microbatches.
    plan = plan_update_batches(make_batch(), 4, 30, lambda own: [*own, [1, 5]])
    alone = plan_update_batches(make_batch(), 4, 30)
    sizes = [[len(rows) for rows in part.microbatches] for part in plan]
    assert sizes[0] == [len(rows) for rows in alone[0].microbatches]
    assert sizes[1] == [*(len(rows) for rows in alone[1].microbatches), *[0] * (5 - len(alone[1].microbatches))]
    assert len(sizes[1]) == 5
    assert sorted(plan[1].rows.tolist()) == [4, 5, 6, 7]
    lengths = make_batch().prompt_lengths + make_batch().completion_lengths
    assert int(lengths[plan[1].stand_in]) == int(lengths[4:].min())


def test_items_are_dealt_back_in_the_order_of_the_prompts(monkeypatch):
    prompts = list(range(7))

    def all_gather_object(parts, items):
        parts[:] = [prompts[0::3], prompts[1::3], prompts[2::3]]

    monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)
    rank = DistributedParallel.__new__(DistributedParallel)
    rank.world_size = 3
    assert rank.gather([]) == prompts


def test_a_checkpoint_of_another_number_of_ranks_is_refused(tmp_path):
    class Rank(Parallel):
        rank, world_size, shards_optimizer = 1, 2, True

    (tmp_path / "training_state-0-of-4.safetensors").touch()
    with pytest.raises(StorageError, match=r"no training_state-1-of-2.* only training_state-0-of-4"):
        load_training_state(tmp_path, None, None, Rank())


def test_a_missing_deepspeed_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match="DeepSpeed is not installed"):
        make_parallel(config(strategy="deepspeed"))


@pytest.mark.slow
def test_two_ranks(tmp_path):
    first, second = run_ranks("tests.invariants.collectives_job", 2, {}, tmp_path)
    assert first["rank"] == [0, 2, True]
    assert second["rank"] == [1, 2, False]
    for rank in (first, second):
        assert rank["dealt"] == ["0a", "1a", "0b", "1b", "0c"]
        assert rank["sum"] == [2.0, 1.0]
        assert rank["any"] == [True, False]
        assert "2 processes were started" in rank["without a strategy"]
        assert "seed is 0 on rank 0 but 1 on rank 1" in rank["other seeds"]
        assert "evaluation.sets" in rank["other sets"]


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "accelerate": [
        "accelerate.commands.launch",
        *("--use_deepspeed", "--zero_stage", "1", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "bf16", "--dynamo_backend", "no"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_command_under_a_launcher(launcher, tiny_policy, tmp_path: Path):
    settings = {
        "model.name_or_path": tiny_policy,
        "parallel.strategy": "deepspeed",  # the launcher's own ZeRO settings are not asked
        "rollout.prompts_per_step": 2,
        "rollout.max_new_tokens": 8,
        "optim.update_batch_size": 16,
        "evaluation.sets": "{dev: {split: dev, size: 3}}",
        "max_steps": 1,
    }
    command = [
        *(sys.executable, "-m", *LAUNCHERS[launcher], "-m", "trainer", "run", "tiny_kk"),
        *(f"{key}={value}" for key, value in settings.items()),
        *("--runs-dir", str(tmp_path), "--offline"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert sum(line.startswith("step 1/1") for line in lines) == 1  # of the first rank alone
    (run_dir,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert f"model:    {run_dir / 'checkpoints' / 'step-1'}" in lines
    assert len(list((run_dir / "checkpoints" / "step-1").glob("training_state-*-of-2.safetensors"))) == 2
