"""What one rank does in tests of the second device: updates by rules, and runs, one after another."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tests.gpu import second_device
from tests.gpu.second_device import FAR, Functions, Operations, mismatches, products, waits
from tests.invariants.rules import algorithm
from tests.invariants.rules_job import rule_config
from tests.invariants.update_job import Updates
from tests.trainer.algorithm.batches import make_groups
from tests.trainer.test_loop import build, small_config
from trainer.algorithm.batching import build_batch, lengths_to_mask, plan_update_batches
from trainer.algorithm.update import Updater, UpdateStatistics
from trainer.parallel.ranks import Parallel, end_rank, leave_ranks
from trainer.policy.architectures import KNOWN
from trainer.policy.logprobs import LogprobModel
from trainer.rules.inputs import UpdateTotals

CAUSAL = "loptune_causal"
# A kernel that gets no mask: transformers leaves it away where it sees that nothing is padded, and that cannot be
# seen of tensors without contents.
AttentionInterface.register(CAUSAL, sdpa_attention_forward)
SMALL = {
    "reward.functions": {"tests.gpu.varied_reward:varied": 1.0},
    "reward.workers": 1,
    "rollout.prompts_per_step": 4,
    "rollout.max_new_tokens": 8,
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
    metrics, step_waits = first.training_step(), dict(waits)
    first._evaluate()
    first.save_checkpoint()
    third = first.training_step()
    first.close()
    second = build(config, folder)
    assert second.resume() == 2
    assert second.training_step()["policy/loss"] == third["policy/loss"]
    second.close()
    return seen(step_waits, updates=metrics["optim/updates"])


def update(rule: str, tokens_per_microbatch: int, model: str) -> dict[str, Any]:
    """Score and update by a rule."""
    config = rule_config(rule, Path(model), "none", {"optim.tokens_per_microbatch": tokens_per_microbatch})
    updates = Updates(config, Parallel(torch.device(FAR, 0)))
    waits.clear()
    result = updates.step(0)
    return seen(dict(waits), updates=result["updates"])


def large(stored: str) -> dict[str, Any]:
    """Forward and backward of an update of Qwen2.5-3B without contents, two microbatches of two rows."""
    second_device.beneath, far = torch.device("meta"), torch.device(FAR, 0)
    with torch.device("meta"):
        config, dtype = AutoConfig.for_model(**KNOWN["Qwen/Qwen2.5-3B"].settings()), getattr(torch, stored)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=CAUSAL).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    computed = torch.bfloat16 if stored == "float32" else torch.float32
    policy = LogprobModel(model.to(far), 1.0, 1024, computed)
    batch = build_batch(make_groups([[1000, 900, 800, 700]], [500]), 0, far)
    [whole] = plan_update_batches(batch, 4, 3000)
    in_pass, statistics = lengths_to_mask(batch.completion_lengths), UpdateStatistics.of(batch)
    updater = Updater(policy, None, algorithm({}, ar_alpha=0.3), 1.0, Parallel(far), 1000)
    waits.clear()
    products.clear()
    updater._accumulate_gradients(batch, in_pass, whole, UpdateTotals(3400, 4), statistics)
    second_device.beneath = torch.device("cpu")
    assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())
    gradients = {str(parameter.grad.dtype) for parameter in model.parameters()}
    return seen(dict(waits), updates=len(whole.microbatches), products=dict(products), gradients=list(gradients))


def main(folder: Path) -> None:
    job, libraries, results = json.loads((folder / "job.json").read_text()), second_device.set_up(), {}
    for name, (kind, *arguments) in job["cases"].items():
        mismatches.clear()
        if kind == "train":
            arguments.append(folder / name)
        with Operations(), Functions():
            results[name] = {"train": train, "update": update, "large": large}[kind](*arguments)
    del libraries
    leave_ranks()
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(results, indent=1))
    end_rank(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
