"""What one rank does in tests of checkpoints that other ranks or another strategy read."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import Tensor

from tests.invariants.train_job import small_config
from tests.trainer import test_loop
from trainer.loop import Trainer
from trainer.parallel.ranks import exit_rank, leave_ranks
from trainer.parallel.strategy import make_parallel
from trainer.types import RunContext

MOMENTS = ("exp_avg", "exp_avg_sq")


def full_state(trainer: Trainer) -> dict[str, Tensor]:
    """Whole master weights and moments by the parameter's name, and the count of updates: under
    ZeRO as DeepSpeed's own functions assemble them.
    """
    optimizer = trainer.models.optimizer
    sharded = trainer.parallel.shards_optimizer
    inner = optimizer.optimizer if sharded else optimizer
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
        optimizer._lazy_init_hp_params_optimizer_state()
    whole = {}
    for name, parameter in trainer.models.causal_lm.named_parameters():
        if not parameter.requires_grad:
            continue
        if sharded:
            whole[name] = safe_get_full_fp32_param(parameter)
            for key in MOMENTS:
                whole[f"{name}/{key}"] = safe_get_full_optimizer_state(parameter, key)
        else:
            whole[name] = parameter
            for key in MOMENTS:
                whole[f"{name}/{key}"] = inner.state[parameter][key]
    [steps] = {float(state["step"]) for state in inner.state.values()}
    copies = {name: tensor.detach().float().clone() for name, tensor in whole.items()}
    return copies | {"step": torch.tensor(steps)}


def run_case(folder: Path, job: dict[str, Any], name: str, case: dict[str, Any]) -> dict[str, Any]:
    """Train to the case's last step, from the checkpoint that is there or from the beginning."""
    config = small_config(Path(job["model"]), case["overrides"])
    run_dir = Path(job["runs"]) / name
    recorder = test_loop.Recorder()
    context = RunContext(run_dir, run_dir.parent, "test", run_dir.name)
    trainer = Trainer(config, context, recorder, parallel=make_parallel(config))
    resumed_at = trainer.resume()
    if resumed_at:
        keep(folder / f"{name}-read.pt", full_state(trainer), trainer)
    while trainer.step < case["until"]:
        trainer.train_until_evaluation()
    trainer.save_checkpoint()
    keep(folder / f"{name}-written.pt", full_state(trainer), trainer)
    trainer.close()
    metrics = {step: test_loop.without_times(logged) for step, logged in recorder.steps.items()}
    return {"step": trainer.step, "resumed_at": resumed_at, "metrics": metrics}


def keep(path: Path, state: dict[str, Tensor], trainer: Trainer) -> None:
    if trainer.parallel.is_main:
        torch.save(state, path)


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    results = {name: run_case(folder, job, name, case) for name, case in job["cases"].items()}
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(results))
    leave_ranks()
    exit_rank(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
