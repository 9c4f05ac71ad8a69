"""Parallelism with DeepSpeed ZeRO, stages 0 to 3."""

import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import deepspeed
import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs
from deepspeed.runtime.zero import (
    GatheredParameters,
    parameter_offload,
    register_external_parameter,
)
from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations import deepspeed as hf_deepspeed
from transformers.integrations import unset_hf_deepspeed_config
from typing_extensions import override

from trainer.config.schema import TrainConfig
from trainer.parallel.device import compute_dtype
from trainer.parallel.fragments import COUNTERS, Fragment, SavedTensors
from trainer.parallel.ranks import DistributedParallel, backend_for, reset_accelerate
from trainer.planning.memory import reduce_bucket_elements
from trainer.policy.weights import host_copy, trained_weights


class DeepSpeedParallel(DistributedParallel):
    """A rank under DeepSpeed ZeRO [arXiv:1910.02054].

    Stage 0 is data parallelism with float32 master weights in the module. At stages 1 to 3 the
    master weights are sharded in the optimizer. A checkpoint then has one file per rank. It can
    also be loaded with a different number of ranks or at a different stage (`Fragment`). At
    stage 3 the parameters are also sharded, as soon as they are loaded.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.stage = config.parallel.zero_stage
        self.shards_parameters = self.stage == 3
        self.shards_optimizer = self.stage > 0
        if config.parallel.offload != "none" and self.device.type == "cuda":
            torch.set_num_threads(optimizer_threads(len(os.sched_getaffinity(0)), os.environ))
        self._engines: list[Any] = []
        self._policy: Any = None
        self._accelerator = _accelerator(zero_config(config, self.device), self.device)
        assert self._accelerator.num_processes == self.world_size, (
            "accelerate reports a different number of ranks"
        )

    @override
    def stored_dtype(self, compute_dtype: torch.dtype) -> torch.dtype:
        return compute_dtype if self.shards_optimizer else torch.float32

    @override
    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        self._accelerator.deepspeed_plugin.deepspeed_config["zero_optimization"] |= bucket_sizes(
            model, self.stage
        )
        with redirect_stdout(sys.stderr):  # DeepSpeed prints memory statistics
            engine, _ = self._accelerator.prepare(model, optimizer)
        self._keep(engine)
        self._policy = engine
        return engine, engine.optimizer

    @override
    def prepare_frozen(self, model: nn.Module) -> nn.Module:
        if not self.shards_parameters:
            return model
        settings = dict(self._accelerator.deepspeed_plugin.deepspeed_config)
        settings["zero_optimization"] = settings["zero_optimization"] | bucket_sizes(
            model, self.stage
        )
        with redirect_stdout(sys.stderr):
            engine, *_ = deepspeed.initialize(model=model, config=settings)
        self._keep(engine)
        frozen: nn.Module = engine
        return frozen

    @override
    def microbatch(self, model: Any, is_last: bool) -> AbstractContextManager[None]:
        model.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    @override
    def backward(self, loss: Tensor) -> None:
        self._policy.backward(loss * self.world_size)

    @override
    def step(self, model: Any, optimizer: Any, max_grad_norm: float) -> float:
        if self.stage == 0:
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
            if math.isfinite(norm):
                model.step()
            else:
                model.zero_grad()
            return norm
        model.step()  # leaves the weights unchanged if the norm is not finite
        return float(model.get_global_grad_norm())

    @override
    def full_parameters(self, model: Any) -> AbstractContextManager[None]:
        return _gathered(model) if self.shards_parameters else nullcontext()

    @override
    @contextmanager
    def unsharded(self) -> Iterator[None]:
        # transformers shards every model that it loads while a stage 3 configuration is registered
        kept = hf_deepspeed._hf_deepspeed_config_weak_ref
        unset_hf_deepspeed_config()
        try:
            yield
        finally:
            hf_deepspeed._hf_deepspeed_config_weak_ref = kept

    @override
    def weights(self, causal_lm: PreTrainedModel) -> dict[str, Tensor]:
        if not self.shards_parameters:
            return super().weights(causal_lm)
        copies: dict[int, Tensor] = {}  # by parameter id, so that tied weights stay one tensor
        weights = {}
        for name, tensor in trained_weights(causal_lm).items():
            if id(tensor) not in copies:
                with GatheredParameters([tensor]):
                    copies[id(tensor)] = host_copy(tensor) if self.is_main else torch.empty(0)
            weights[name] = copies[id(tensor)]
        return weights if self.is_main else {}

    @override
    def training_tensors(self, causal_lm: PreTrainedModel, optimizer: Any) -> dict[str, Tensor]:
        if not self.shards_optimizer:
            return super().training_tensors(causal_lm, optimizer)
        tensors: dict[str, Tensor] = {}
        for index, master in enumerate(self._masters(optimizer)):
            parts = {"weights": master.detach(), **optimizer.optimizer.state[master]}
            tensors |= {f"{index}/{key}": host_copy(part) for key, part in parts.items()}
        return tensors

    @override
    def load_training_tensors(
        self, folder: Path, causal_lm: PreTrainedModel, optimizer: Any, tensors: dict[str, Tensor]
    ) -> None:
        if not self.shards_optimizer:
            super().load_training_tensors(folder, causal_lm, optimizer, tensors)
            return
        masters = self._masters(optimizer)
        state = optimizer.optimizer.state
        for name, tensor in tensors.items():
            index, key = name.split("/")
            master = masters[int(index)]
            if key == "weights":
                master.data.copy_(tensor)
            else:
                state[master][key] = tensor.to(master.device)
        self._copy_masters_to_parameters(optimizer)

    @override
    def fragments(self, causal_lm: PreTrainedModel, optimizer: Any) -> list[Fragment]:
        if not self.shards_optimizer:
            return []
        names = {id(parameter): name for name, parameter in causal_lm.named_parameters()}
        if self.shards_parameters:
            return list(_stage_3_fragments(optimizer, names, self.rank))
        fragments = []
        for parameter in causal_lm.parameters():
            mapping = getattr(parameter, "_hp_mapping", None)
            if mapping is not None:  # None: the whole parameter is in other ranks' flat tensors
                fragments.append(
                    Fragment(
                        parameter=names[id(parameter)],
                        start=mapping.lp_fragment_address.start,
                        count=mapping.hp_fragment_address.numel,
                        flat=mapping.param_group_index,
                        offset=mapping.hp_fragment_address.start,
                    )
                )
        return fragments

    @override
    def load_any_layout(
        self,
        saved: SavedTensors,
        parameters: Mapping[str, Tensor],
        fragments: Sequence[Fragment],
        optimizer: Any,
    ) -> None:
        if not self.shards_optimizer:
            super().load_any_layout(saved, parameters, fragments, optimizer)
            return
        masters = self._masters(optimizer)
        state = optimizer.optimizer.state
        for master in masters:
            state[master].clear()
        for fragment in fragments:
            master = masters[fragment.flat]
            _load_fragment(saved, fragment, master, state[master])
        self._copy_masters_to_parameters(optimizer)

    @override
    def close(self) -> None:
        for engine in self._engines:
            engine.destroy()
        self._engines.clear()
        self._policy = None
        _forget_models()
        restore_linear()
        unset_hf_deepspeed_config()
        super().close()

    def _keep(self, engine: Any) -> None:
        self._engines.append(engine)
        if self.shards_parameters:
            # the head uses the output embedding but does not own it
            head = engine.module.head
            for parameter in head.output_embeddings.parameters():
                register_external_parameter(head, parameter)

    def _masters(self, optimizer: Any) -> list[Tensor]:
        """Return this rank's flat float32 master weights."""
        if self.shards_parameters:
            masters: list[Tensor] = optimizer.fp32_partitioned_groups_flat
            return masters
        return [master for group in optimizer.optimizer.param_groups for master in group["params"]]

    def _copy_masters_to_parameters(self, optimizer: Any) -> None:
        """Copy the master weights to the module's parameters. Collective."""
        if not self.shards_parameters:
            optimizer.update_lp_params()
            return
        for index in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(index)
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)
        optimizer.checkpoint_event_epilogue()


def _load_fragment(
    saved: SavedTensors, fragment: Fragment, master: Tensor, state: dict[str, Tensor]
) -> None:
    """Load a fragment of a parameter into flat master weights and their optimizer state.

    The fragments of a flat tensor share the counters, which are not split. The padding at its end
    belongs to no fragment, and its state is zero.
    """
    part = slice(fragment.offset, fragment.offset + fragment.count)
    place = (fragment.start, fragment.count)
    master.data[part].copy_(saved.elements(fragment.parameter, "weights", *place))
    for key in saved.keys(fragment.parameter):
        if key in COUNTERS:
            state[key] = saved.scalar(fragment.parameter, key).to(master.device, copy=True)
            continue
        if key not in state:
            state[key] = torch.zeros_like(master.data)
        state[key][part].copy_(saved.elements(fragment.parameter, key, *place))


def _stage_3_fragments(optimizer: Any, names: Mapping[int, str], rank: int) -> Iterator[Fragment]:
    """Yield the fragments of a rank's flat tensors: equal parts of every parameter, by rank. The
    last rank's part may end with padding, or contain only padding. ``names`` maps parameter ids to
    names.
    """
    for flat, parameters in enumerate(optimizer.fp16_groups):
        offset = 0
        for parameter in parameters:
            size = parameter.partition_numel()
            start = rank * size
            count = min(size, parameter.ds_numel - start)
            if count > 0:
                yield Fragment(
                    parameter=names[id(parameter)],
                    start=start,
                    count=count,
                    flat=flat,
                    offset=offset,
                )
            offset += size
        assert offset == optimizer.fp32_partitioned_groups_flat[flat].numel(), (
            "DeepSpeed stage 3 uses an unexpected layout for its flat tensors"
        )


def optimizer_threads(cores: int, environment: Mapping[str, str]) -> int:
    """Return the number of threads for CPU-offloaded optimizer steps: OMP_NUM_THREADS in
    ``environment`` if the user set it, else the node's ``cores`` divided by its ranks, at least 1.

    torchrun sets OMP_NUM_THREADS=1 if it is unset, which is far too few for a large model, so
    loptune ignores that value.
    """
    requested = int(environment.get("OMP_NUM_THREADS") or 0)
    by_torchrun = requested == 1 and "TORCHELASTIC_RUN_ID" in environment
    cores_per_rank = max(1, cores // int(environment.get("LOCAL_WORLD_SIZE", "1")))
    return requested if requested and not by_torchrun else cores_per_rank


def _forget_models() -> None:
    """Clear the global caches in which DeepSpeed stage 3 keeps every model and optimizer alive."""
    parameter_offload.FWD_MODULE_STACK.clear()
    # The cached methods are hidden behind a wrapper without __wrapped__, so search its closure.
    for method in vars(PartitionedParameterCoordinator).values():
        for cell in getattr(method, "__closure__", None) or ():
            if hasattr(cell.cell_contents, "cache_clear"):
                cell.cell_contents.cache_clear()


def restore_linear() -> None:
    """Undo stage 3's replacement of ``torch.nn.functional.linear``, which DeepSpeed never undoes.

    Otherwise a later run in this process would round differently than in a new process.
    """
    original = getattr(InsertPostInitMethodToModuleSubClasses, "linear_bk", None)
    if original is not None:
        nn.functional.linear = original


def zero_config(config: TrainConfig, device: torch.device) -> dict[str, Any]:
    """Return DeepSpeed's configuration for a run."""
    parallel = config.parallel
    host = {"device": "cpu", "pin_memory": device.type == "cuda"}
    zero: dict[str, Any] = {"stage": parallel.zero_stage}
    if device.type == "cuda" and parallel.zero_stage > 0:
        zero["overlap_comm"] = True  # reduce gradients during the backward pass
    if parallel.offload != "none":
        zero["offload_optimizer"] = host
    if parallel.offload == "parameters":
        zero["offload_param"] = host
    settings: dict[str, Any] = {
        # microbatches vary in number and size, so accumulation boundaries are set manually
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # stage 0 clips without returning the norm, so `step` clips itself
        "gradient_clipping": config.optim.max_grad_norm if parallel.zero_stage > 0 else 0.0,
        "zero_optimization": zero,
        # torch's fused AdamW is as fast on a CPU as DeepSpeed's extension, which would have to be
        # compiled
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": False},
        # the throughput timer synchronizes with the device before every forward pass
        "timers": {"throughput": {"enabled": False}},
    }
    if compute_dtype(config.model, device) == torch.bfloat16 and parallel.zero_stage > 0:
        settings["bf16"] = {"enabled": True, "check_grad_overflow": True}
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
        settings["communication_data_type"] = "fp32"
    return settings


def _accelerator(settings: dict[str, Any], device: torch.device) -> Any:
    # DeepSpeed calls deprecated torch collectives thousands of times
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    if device.type == "cpu":
        # Otherwise DeepSpeed would compile an extension for shared-memory reductions, which takes
        # more than a minute. Only for the CPU: reading this table makes DeepSpeed probe the
        # requirements of all its extensions, including nvcc on GPU machines.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    reset_accelerate()
    # otherwise accelerate would choose an available GPU instead of the CPU
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(device)
    # `accelerate launch` sets the first variable from its ZeRO config file, and the second for
    # --cpu, which would disable DeepSpeed
    for name in ("ACCELERATE_CONFIG_DS_FIELDS", "ACCELERATE_USE_CPU"):
        os.environ.pop(name, None)
    group = InitProcessGroupKwargs(backend=backend_for(device))
    return Accelerator(
        mixed_precision="no",
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings),
        kwargs_handlers=[group],
    )


def bucket_sizes(model: Any, stage: int) -> dict[str, int]:
    """Return ZeRO's bucket sizes and stage 3's parameter persistence threshold, in elements.

    With small buckets every backward pass would make hundreds of reductions, each too small to
    saturate the GPU interconnect. At stages 1 and 2 the largest trained parameter fits into a
    bucket (`reduce_bucket_elements`).
    """
    width = model.causal_lm.config.get_text_config().hidden_size
    trained = [getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad]
    elements = reduce_bucket_elements(stage, sum(trained), max(trained, default=0))
    return {
        "reduce_bucket_size": max(1, elements),
        "stage3_prefetch_bucket_size": int(0.9 * width * width),
        "stage3_param_persistence_threshold": 10 * width,
    }


@contextmanager
def _gathered(engine: Any) -> Iterator[None]:
    """Gather all parameters and remove ZeRO-3's fetch and release hooks for the duration of the
    block.

    With the hooks, modules would release and re-gather their parameters on every call. That is a
    collective, and ranks that generate different numbers of tokens would deadlock.
    """
    offload = engine.optimizer.parameter_offload
    with GatheredParameters(list(engine.module.parameters())):
        for parameter in engine.module.parameters():
            parameter.ds_active_sub_modules.clear()
        for hook in [*offload.forward_hooks, *offload.backward_hooks]:
            hook.remove()
        offload.forward_hooks = []
        offload.backward_hooks = []
        try:
            yield
        finally:
            offload._register_deepspeed_module(engine.module)
