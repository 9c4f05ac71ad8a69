"""What one rank does in tests of the update: rollout steps on made-up completions, one case after
another.
"""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.conftest import random_model
from tests.invariants.ranks import be_a_rank
from tests.rounding import gradient_terms, largest_gradient
from tests.trainer.algorithm.batches import make_groups
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import build_batch
from trainer.algorithm.passes import isolation_passes, select_loss_tokens
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.scoring import Scorer
from trainer.algorithm.update import Updater, UpdateStatistics
from trainer.attempt import Attempt
from trainer.checkpoint.on_disk import write_checkpoint
from trainer.checkpoint.run_state import RunState
from trainer.checkpoint.state import load_training_state, stage_training_state
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.parallel import models
from trainer.parallel.ranks import Parallel
from trainer.parallel.strategy import make_parallel
from trainer.rollouts.balance import balance_groups

# Eight prompts with four completions each; the ranks get microbatches of unequal number.
SIZES = [[5, 9, 3, 12], [7, 1, 4, 8], [30, 2, 2, 2], [3, 3, 3, 4]]
SIZES += [[6, 28, 9, 1], [2, 5, 1, 3], [31, 29, 30, 30], [1, 1, 2, 1]]
PROMPTS = [6, 11, 4, 9, 7, 5, 8, 10]
STEPS = 3
_LINEAR = torch.nn.functional.linear
_LENGTH = max(prompt + max(sizes) for prompt, sizes in zip(PROMPTS, SIZES, strict=True))
# see tests/rounding.py
RANKS_TERMS = gradient_terms(random_model().config, _LENGTH, sum(map(sum, SIZES)))


def update_config(model: Path, overrides: dict[str, Any]) -> TrainConfig:
    base = {
        "model.name_or_path": str(model),
        "rollout.temperature": 0.9,
        "optim.lr": 1e-3,
        "optim.eps": 1e-3,  # bounds what AdamW makes of a rounding: see tests/rounding.py
        "optim.update_batch_size": 16,
        "optim.tokens_per_microbatch": 120,
        "optim.max_grad_norm": 0.5,
        "algorithm.lopti_eta": 0.02,
        "algorithm.ar_alpha": 0.3,
        "algorithm.kl_coef": 0.1,
    }
    return apply_overrides(TrainConfig(), base | overrides)


class NoTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        pass


class Collectives(TorchDispatchMode):
    """On how many numbers of this rank each collective is called in all."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::").strip("_")
            self.numbers[name] += sum(
                leaf.numel() for leaf in tree_leaves(args) if torch.is_tensor(leaf)
            )
        return func(*args, **(kwargs or {}))


class Updates:
    """Policy, reference and optimizer of one case."""

    def __init__(self, config: TrainConfig, parallel: Parallel, balanced: bool = False) -> None:
        self.config = config
        self.balanced = balanced
        self.parallel = parallel
        with patch.object(models, "tokens_per_chunk", lambda *_: 16):
            self.models = models.load_models(config, parallel)
        self.causal_lm = self.models.causal_lm
        self.policy = self.models.policy
        self.optimizer = self.models.optimizer

    def step(self, step: int) -> dict[str, Any]:
        config = self.config
        parallel = self.parallel
        groups = make_groups(SIZES, PROMPTS, seed=step)[parallel.rank :: parallel.world_size]
        if self.balanced:
            groups = balance_groups(groups, config.optim.update_batch_size, parallel)
        batch, plan = Scorer(config.optim, self.models, 0, parallel).score(groups)
        batch = estimate_advantages(batch, config.algorithm, parallel.sum)
        batch = select_loss_tokens(batch, config.algorithm, gather=parallel.gather)
        state = config.algorithm.loss.initial_state()
        batch = replace(batch, step=step + 1, total_steps=STEPS, loss_state=state)
        batch = reweight_advantages(batch, config.algorithm)
        statistics = UpdateStatistics.of(batch)
        updater = Updater(
            self.policy,
            self.optimizer,
            config.algorithm,
            config.optim.max_grad_norm,
            parallel,
            8,
            self.models.cached_forward,
        )
        collectives = Collectives() if step == 0 else nullcontext()
        passes = isolation_passes(batch, config.algorithm, gather=parallel.gather)
        with collectives:
            for mask in passes:
                updater.run_pass(batch, mask, plan, statistics, step)
        counted = {"numbers": collectives.numbers} if step == 0 else {}
        return counted | {
            "loss": float(parallel.sum(statistics.loss)),
            "grad_norm": statistics.grad_norm,
            "updates": statistics.updates,
            "advantage_squares": float(parallel.sum((batch.advantages**2).sum())),
            "own_microbatches": [sum(len(rows) > 0 for rows in part.microbatches) for part in plan],
            "microbatches": [len(part.microbatches) for part in plan],
            "tokens": [
                int((batch.prompt_lengths + batch.completion_lengths)[part.rows].sum())
                for part in plan
            ],
        }

    def undefined_gradient(self) -> float:
        """Take a step whose loss is finite and whose gradient is not; returns the norm."""
        batch = build_batch(make_groups(SIZES, PROMPTS), 0, self.parallel.device)
        with self.parallel.microbatch(self.policy, is_last=True):
            scores = self.policy(batch.input_ids, batch.prompt_lengths, batch.completion_mask)
            # The root of 0 has an infinite slope; on one rank only.
            loss = (
                (scores.logprobs * 0).sum().sqrt()
                if self.parallel.is_main
                else scores.logprobs.mean()
            )
            assert torch.isfinite(loss)
            self.parallel.backward(loss)
        return self.parallel.step(self.policy, self.optimizer, self.config.optim.max_grad_norm)

    def save(self, root: Path, step: int) -> None:
        write_checkpoint(
            root,
            step,
            stage_training_state(
                self.causal_lm,
                NoTokenizer(),
                self.optimizer,
                RunState(step, [], 0, {}),
                self.parallel,
            ),
            self.parallel,
            Attempt(root.parent),
        )

    def export(self, path: Path) -> None:
        """Rank 0 saves the whole weights."""
        weights = self.parallel.weights(self.causal_lm)
        if self.parallel.is_main:
            save_file({name: tensor.clone() for name, tensor in weights.items()}, path)


def run_case(
    config: TrainConfig, name: str, folder: Path, balanced: bool = False
) -> dict[str, Any]:
    """Train ``STEPS`` steps; then the last one again from the checkpoint before it, in the same
    process.
    """
    parallel = make_parallel(config)
    updates = Updates(config, parallel, balanced)
    steps = [updates.step(step) for step in range(STEPS - 1)]
    updates.save(folder / name, STEPS - 1)
    steps.append(updates.step(STEPS - 1))
    updates.export(folder / f"{name}.safetensors")
    largest = largest_gradient(updates.optimizer)
    norm = updates.undefined_gradient()
    updates.export(folder / f"{name}-undefined.safetensors")
    parallel.close()

    parallel = make_parallel(config)
    updates = Updates(config, parallel, balanced)
    load_training_state(
        folder / name / f"step-{STEPS - 1}", updates.causal_lm, updates.optimizer, parallel
    )
    resumed = updates.step(STEPS - 1)
    updates.export(folder / f"{name}-resumed.safetensors")
    parallel.close()
    return {
        "linear_restored": torch.nn.functional.linear is _LINEAR,
        "steps": steps,
        "largest_gradient": largest,
        "resumed": resumed,
        "undefined_norm": norm,
        "sub_groups": len(getattr(updates.optimizer, "fp16_groups", ())),
    }


def with_zero(settings: dict[str, Any]) -> AbstractContextManager[Any]:
    """A context in which DeepSpeed's ``zero_optimization`` has these settings besides its own.

    ``bucket`` is the size of a reduce bucket, whatever the largest parameter is.
    """
    if not settings:
        return nullcontext()
    from trainer.parallel import deepspeed

    if "bucket" in settings:
        return patch.object(deepspeed, "reduce_bucket_elements", lambda *sizes: settings["bucket"])
    original = deepspeed.zero_config
    return patch.object(
        deepspeed,
        "zero_config",
        lambda *run: (made := original(*run))["zero_optimization"].update(settings) or made,
    )


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    results = {}
    for name, overrides in job["cases"].items():
        balanced = overrides.pop("balanced", False)
        with with_zero(overrides.pop("zero", {})):
            config = update_config(Path(job["model"]), overrides)
            results[name] = run_case(config, name, folder, balanced)
    return results


if __name__ == "__main__":
    be_a_rank(work)
