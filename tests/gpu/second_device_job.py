"""What one rank does in tests of the second device: updates by rules, and runs, one after
another.
"""

from pathlib import Path
from typing import Any

import torch

from tests.gpu import second_device
from tests.gpu.second_device import FAR, Functions, Operations, cached, mismatches, waits
from tests.invariants.ranks import be_a_rank
from tests.invariants.rules_job import rule_config
from tests.invariants.update_job import Updates
from tests.trainer.test_loop import build, small_config
from trainer.parallel.ranks import Parallel

SMALL = {
    "reward.functions": {"tests.gpu.varied_reward:varied": 1.0},
    "reward.workers": 1,
    "rollout.prompts_per_step": 4,
    "rollout.max_new_tokens": 4,
    "optim.update_batch_size": 8,
    "evaluation.sets": {"dev": {"source": "generated", "split": "dev", "size": 2}},
}


def seen(step_waits: dict[str, int], **more: Any) -> dict[str, Any]:
    return {"waits": step_waits, "mismatches": dict(mismatches), **more}


def train(overrides: dict[str, Any], model: str, folder: Path) -> dict[str, Any]:
    """Train two steps, evaluate, write a checkpoint, train a third; resume and train that again."""
    config = small_config(Path(model), **(SMALL | overrides))
    first = build(config, folder)
    assert first.models.causal_lm.device.type == FAR
    first.training_step()
    waits.clear()
    before = cached()
    metrics = first.training_step()
    step_waits = dict(waits)
    grown = dict(cached() - before)
    first._evaluate()
    first.save_checkpoint()
    third = first.training_step()
    first.close()
    second = build(config, folder)
    assert second.resume() == 2
    assert second.training_step()["policy/loss"] == third["policy/loss"]
    second.close()
    return seen(step_waits, updates=metrics["optim/updates"], grown=grown)


def update(rule: str, tokens_per_microbatch: int, model: str) -> dict[str, Any]:
    """Score and update by a rule."""
    config = rule_config(
        rule, Path(model), "none", {"optim.tokens_per_microbatch": tokens_per_microbatch}
    )
    updates = Updates(config, Parallel(torch.device(FAR, 0)))
    waits.clear()
    result = updates.step(0)
    return seen(dict(waits), updates=result["updates"])


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    second_device.set_up()
    results = {}
    for name, (kind, *arguments) in job["cases"].items():
        mismatches.clear()
        with Operations(), Functions():
            results[name] = (
                train(*arguments, folder / name) if kind == "train" else update(*arguments)
            )
    return results


if __name__ == "__main__":
    be_a_rank(work)
