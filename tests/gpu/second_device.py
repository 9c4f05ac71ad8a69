"""A second device without a GPU: tensors with real values that say they are elsewhere.

A `Far` tensor reports the device ``far:0`` and computes on the CPU. Run as ranks, the module trains on it and
writes, for each run, what a GPU would not like:

- ``mismatches``: operations on a far tensor and a CPU tensor of one dimension or more, an error on a GPU;
- ``waits``: by line of the trainer, how often one step reads a far value on the host, which stops a GPU until all
  queued work is done, or copies one from the host to the device without ``non_blocking``, which does too.

It shows nothing of kernels, autocast, streams, memory and branches for ``cuda``.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import trainer.parallel.ranks
import trainer.parallel.start
from tests.conftest import random_model
from tests.invariants.rules import algorithm, rewards_of
from tests.paths import ROOT
from tests.trainer.algorithm.batches import make_groups
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import build_batch, plan_update_batches
from trainer.algorithm.isolation import isolation_passes
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.scoring import attach_logprobs, score_batch
from trainer.algorithm.update import Updater, UpdateStatistics
from trainer.config.schema import apply_overrides, load_config
from trainer.loop import Trainer
from trainer.metrics.bands import band_metrics, change_metrics
from trainer.metrics.step import batch_metrics, update_metrics
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel
from trainer.rollouts.shared_prefix import SharedPrefixBatch
from trainer.types import RunContext

MAY_MIX = {"aten::copy_", "aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
READS_A_SIZE = {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal"}
waits: Counter[str] = Counter()
mismatches: Counter[str] = Counter()


def caller() -> str:
    """File and line of the trainer that is running."""
    frame, root = sys._getframe(1), f"{ROOT}/trainer/"
    while frame is not None and not frame.f_code.co_filename.startswith(root):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(f'{ROOT}/')}:{frame.f_lineno}" if frame else "?"


class Far(torch.Tensor):
    """A CPU tensor that says it is on ``far:0``."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        wrapped = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("far", 0),
        )
        wrapped.inner = inner
        return wrapped

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def _near(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, Far) else leaf


def _is_far(device: Any) -> bool:
    return device is not None and torch.device(device).type == "far"


def compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operation on the CPU, note what a GPU would not like, and wrap what it gives."""
    name, wanted = func._schema.name, kwargs.get("device")
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    far = [tensor for tensor in tensors if isinstance(tensor, Far)]
    near = [tensor for tensor in tensors if not isinstance(tensor, Far) and tensor.dim() > 0]
    if far and near and name not in MAY_MIX and name.startswith("aten::"):
        mismatches[f"{caller()} {name}"] += 1
    reads = name in READS_A_SIZE or name == "aten::_local_scalar_dense"
    if name == "aten::_to_copy" and wanted is not None:
        reads = not _is_far(wanted)
    if name.startswith("aten::index") and len(args) > 1 and isinstance(args[1], (list, tuple)):
        masks = [place for place in args[1] if place is not None and place.dtype == torch.bool]
        fills = name != "aten::index" and args[2].dim() == 0
        reads = bool(masks) and not fills
    copies = len(far) < len(tensors) and (
        (name == "aten::copy_" and isinstance(args[0], Far) and not (len(args) > 2 and args[2]))
        or (name == "aten::_to_copy" and _is_far(wanted) and not kwargs.get("non_blocking"))
        or (name.startswith("aten::index") and bool(far))
    )
    if (far and reads) or copies:
        waits[caller()] += 1
    if _is_far(wanted):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*tree_map(_near, args), **tree_map(_near, kwargs))
    if name == "aten::_to_copy" and far and wanted is not None and not _is_far(wanted):
        return result
    if not far and not _is_far(wanted):
        return result
    if args and isinstance(args[0], Far) and (name == "aten::copy_" or result is args[0].inner):
        return args[0]
    return tree_map(lambda leaf: Far(leaf) if isinstance(leaf, torch.Tensor) else leaf, result)


class Operations(TorchDispatchMode):
    """Operations that make tensors on ``far`` from nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """What does not go through operations: `torch.tensor`, `tolist`, `numpy`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_far(kwargs.get("device")):
            device = kwargs.pop("device")
            return args[0] if isinstance(args[0], Far) else func(*args, **kwargs).to(device)
        if func is torch.Tensor.new_tensor and isinstance(args[0], Far):
            return torch.tensor(args[1], dtype=kwargs.get("dtype") or args[0].dtype).to(args[0].device)
        if func in (torch.Tensor.tolist, torch.Tensor.numpy) and isinstance(args[0], Far):
            waits[caller()] += 1
            return func(args[0].inner)
        if func in (torch.Tensor.untyped_storage, torch.Tensor.data_ptr):  # by which shared weights are told
            return func(_near(args[0]))
        return func(*args, **kwargs)


def set_up() -> None:
    """Make ``far`` a device of this process and the one that the trainer takes."""
    _setup_privateuseone_for_python_backend("far")
    module = torch.far  # type: ignore[attr-defined]
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    in_inference_mode = SharedPrefixBatch._next_hidden  # which wrappers cannot be
    SharedPrefixBatch._next_hidden = torch.no_grad()(in_inference_mode.__wrapped__)
    for user in (trainer.parallel.ranks, trainer.parallel.start):
        user.local_device = lambda wanted="auto": torch.device("far", 0)


def train(overrides: dict[str, Any], model: str, folder: Path) -> dict[str, Any]:
    """Train two steps on the device, evaluate, write a checkpoint, and resume from it for a third."""
    small = {
        "model.name_or_path": model,
        "data.train": {"source": "generated", "size": 20},
        "evaluation.sets": {"dev": {"source": "generated", "split": "dev", "size": 2}},
        "evaluation.every_steps": 2,
        "checkpoint.every_steps": 2,
        "reward.functions": {"tests.gpu.varied_reward:varied": 1.0},
        "reward.workers": 1,
        "rollout.prompts_per_step": 4,
        "rollout.group_size": 4,
        "rollout.max_new_tokens": 8,
        "optim.update_batch_size": 8,
        "optim.tokens_per_microbatch": 300,
        "max_steps": 3,
    }
    config = apply_overrides(load_config("tiny_kk"), small | overrides)
    mismatches.clear()
    with Operations(), Functions():
        first = Trainer(config, RunContext.of(folder))
        assert first.models.causal_lm.device.type == "far"
        first.training_step()
        waits.clear()
        metrics = first.training_step()
        step_waits = dict(waits)
        first._evaluate()
        first.save_checkpoint()
        first.close()
        second = Trainer(config, RunContext.of(folder))
        assert second.resume() == 2
        second.training_step()
        second.close()
    assert metrics["optim/updates"] > 0
    return {"waits": step_waits, "mismatches": dict(mismatches)}


def update(rule: dict[str, Any], tokens_per_microbatch: int) -> dict[str, Any]:
    """Score and update a small random model on the device by a rule, with the metrics of a step."""
    far, parallel = torch.device("far", 0), Parallel(torch.device("far", 0))
    config = algorithm(rule, lopti_eta=0.5, ar_alpha=0.3)
    groups = make_groups([[5, 9, 3, 7], [4, 4, 8, 2]], [6, 4], rewards=rewards_of(rule))
    mismatches.clear()
    with Operations(), Functions():
        policy, reference = (LogprobModel(random_model().to(far), 0.9, 16) for _ in range(2))
        waits.clear()
        batch = build_batch(groups, 0, far)
        plan = plan_update_batches(batch, len(batch.rewards) // 2, tokens_per_microbatch)
        batch = attach_logprobs(batch, policy, reference, plan)
        batch = reweight_advantages(estimate_advantages(batch, config, parallel.sum), config)
        statistics = UpdateStatistics.of(batch)
        updater = Updater(policy, torch.optim.AdamW(policy.parameters()), config, 1.0, parallel, 9)
        for token_mask in isolation_passes(batch, config, torch.Generator(), parallel.gather):
            updater.run_pass(batch, token_mask, plan, statistics, 1)
        metrics = batch_metrics(batch, config, parallel) | update_metrics(statistics, 0.0, parallel)
        metrics |= band_metrics(batch, statistics, config, parallel)
        new = score_batch(policy, batch, plan, with_entropy=False).logprobs
        metrics |= change_metrics(batch, new, parallel)
    assert metrics["optim/updates"] > 0
    return {"waits": dict(waits), "mismatches": dict(mismatches)}


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    set_up()
    results = {name: update(*case) for name, case in job.get("updates", {}).items()}
    results |= {name: train(case, job["model"], folder / name) for name, case in job["cases"].items()}
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(results, indent=1))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
