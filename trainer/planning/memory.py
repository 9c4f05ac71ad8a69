"""Memory and disk that a run needs: held tensors by arithmetic, a microbatch by simulation.

Nothing here has been measured on a GPU. It imports no torch but where it simulates.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainer.config.parallel import ParallelConfig
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.errors import MissingError
from trainer.planning.advice import Advice
from trainer.policy.architectures import ModelSize, model_size, parameter_count

_log = logging.getLogger(__name__)

GPU_BYTES = 80 * 10**9  # of the GPUs that the presets were made for
_MASTER_BYTES = 4  # of a parameter: the float32 weights that are trained
_MOMENTS_BYTES = 8  # Adam's two, float32
_GRADIENT_BYTES = 4  # float32, also where the model computes in bfloat16
REDUCED_TOGETHER = 50_000_000  # elements of gradients that DeepSpeed reduces at one time
_WHOLE_TOGETHER = 10**9  # parameters that stage 3 has whole at one time: DeepSpeed's default
CPU_BATCH_TOKENS = 131072  # positions of the transformers engine's cache on a CPU
# Assumed, for neither is made of tensors of ours: the CUDA context with cuBLAS and NCCL, an engine that sleeps.
_CONTEXT_BYTES = 15 * 10**8
_ASLEEP_BYTES = 10**9
_PROCESS_BYTES = {True: 5 * 10**9, False: 10**9}  # of host memory: a rank's libraries, with CUDA's and without


@dataclass(frozen=True)
class Device:
    """The device of a rank."""

    on_gpu: bool = True
    total_bytes: int = GPU_BYTES  # of a GPU, or the memory that all ranks share on a CPU


@dataclass(frozen=True)
class Footprint:
    """Bytes of one rank's device, of the host of all ranks, and of the disk."""

    ranks: int
    device: Device
    held: int  # all the time: weights, gradients, optimizer, reference
    training: int  # at most
    sampling: int  # at most
    host: int
    checkpoint: int

    @property
    def margin(self) -> int:
        """Device memory left at the peak; negative where the run does not fit."""
        share = self.device.total_bytes // (1 if self.device.on_gpu else self.ranks)
        return share - max(self.training, self.sampling)

    def as_json(self) -> dict[str, Any]:
        """The footprint as JSON values, margin included."""
        return {**asdict(self), "margin": self.margin}

    def lines(self) -> Iterator[str]:
        """For people."""
        what = "GPU" if self.device.on_gpu else "CPU"
        of = f"each of {self.ranks} ranks" if self.ranks > 1 else "one rank"
        worst = f"{size_text(self.training)} while training and {size_text(self.sampling)} while sampling"
        yield f"of {of} on a {what} of {size_text(self.device.total_bytes)}, simulated:"
        yield f"held {size_text(self.held)}, at most {worst}, margin {size_text(self.margin)};"
        yield f"of the host {size_text(self.host)}; of the disk {size_text(self.checkpoint)} for a checkpoint"


def footprint(
    config: TrainConfig, ranks: int, device: Device | None = None, size: ModelSize | None = None
) -> Footprint | None:
    """Estimate a run's footprint; None for a model whose ``config.json`` is not on this machine.

    Ranks have GPUs of 80 GB where no device is given.
    """
    device, size = device or Device(), size or model_size(config.model.name_or_path)
    if size is None:
        return None
    compute_bytes = _compute_bytes(config, device)
    trained = _trained_parameters(config, size)
    held = _held_bytes(config, size, device, ranks)
    taken = held + (_CONTEXT_BYTES if device.on_gpu else _PROCESS_BYTES[False])
    engine = _vllm_bytes(config, device)
    asleep = min(_ASLEEP_BYTES, engine) if config.rollout.vllm.sleep_level else engine
    update = max(_microbatch_bytes(config, size, device, ranks), _step_bytes(trained, config.parallel, ranks))
    training = taken + asleep + update + _exchanged_bytes(size, compute_bytes, config, ranks)
    sampling = taken + (engine or _transformers_bytes(config, size, taken, ranks, device))
    return Footprint(
        ranks=ranks,
        device=device,
        held=held,
        training=training,
        sampling=sampling,
        host=_host_bytes(size, config, ranks, device) if device.on_gpu else ranks * max(training, sampling),
        checkpoint=checkpoint_bytes(trained, compute_bytes, config.parallel),
    )


def check_fits(config: TrainConfig, ranks: int, device: Device | None = None, quiet: bool = False) -> Footprint | None:
    """Simulate the memory of a run, and warn where it is more than there is: no GPU has confirmed the simulation.

    The warning names changes with which the run would fit, as far as there are any. Ranks have GPUs of 80 GB
    where no device is given; ``quiet`` leaves the warning to another rank.

    Raises:
        MissingError: instead of the warning, with parallel.strict_memory.
    """
    found = footprint(config, ranks, device)
    if found is None or found.margin >= 0:
        return found
    advice = _advice(config, ranks, device, found)
    if config.parallel.strict_memory:
        raise MissingError(advice.what, advice.where, advice.hint)
    if not quiet:
        _log.warning("%s", advice)
    return found


def _advice(config: TrainConfig, ranks: int, device: Device | None, found: Footprint) -> Advice:
    fits = (
        " ".join(f"{key}={str(value).lower()}" for key, value in changes.items())
        for changes in _remedies(config, found)
        if (changed := footprint(apply_overrides(config, changes), ranks, device)) and changed.margin >= 0
    )
    hint = next(fits, "")
    phase = "training" if found.training >= found.sampling else "sampling from"
    most, there_is = size_text(max(found.training, found.sampling)), size_text(found.device.total_bytes)
    return Advice(
        f"{phase} {config.model.name_or_path} takes {most} of each rank's {there_is}, of which "
        f"{size_text(found.held)} are held all the time (simulated for {ranks} rank{'s' if ranks > 1 else ''})",
        "optim.tokens_per_microbatch, parallel, rollout.vllm.gpu_memory_utilization",
        f"it fits with {hint}" if hint else "take more or larger GPUs, or a smaller model",
    )


def planned_checkpoint_bytes(config: TrainConfig, on_gpu: bool, weights_only: bool = False) -> int | None:
    """Size of one checkpoint of a run, or of its weights; None for a model of unknown size."""
    parameters = parameter_count(config.model.name_or_path)
    if config.model.lora.r > 0:
        size = model_size(config.model.name_or_path)
        parameters = _trained_parameters(config, size) if size else None
    if parameters is None:
        return None
    compute_bytes = _compute_bytes(config, Device(on_gpu))
    if weights_only:
        return parameters * (compute_bytes if _in_optimizer(config.parallel) else _MASTER_BYTES)
    return checkpoint_bytes(parameters, compute_bytes, config.parallel)


def held_bytes(parameters: int, compute_bytes: int, reference: bool, parallel: ParallelConfig, ranks: int) -> int:
    """Memory of one rank's device for what stays there all the time: weights, gradients, optimizer, reference.

    ``compute_bytes`` is the size of a parameter in the dtype that the model computes in.
    """
    if parallel.strategy != "deepspeed":
        return parameters * (_MASTER_BYTES + _GRADIENT_BYTES + _MOMENTS_BYTES + (compute_bytes if reference else 0))
    stage = parallel.zero_stage
    weights = compute_bytes * (2 if reference else 1) / (ranks if stage == 3 else 1)
    optimizer = 0.0 if parallel.offload != "none" else (_MASTER_BYTES + _MOMENTS_BYTES) / (ranks if stage else 1)
    gradients = _GRADIENT_BYTES / (ranks if stage >= 2 else 1)
    if parallel.offload == "parameters":
        weights = 0.0
    return round(parameters * (weights + optimizer + gradients))


def _frozen_bytes(parameters: int, compute_bytes: int, parallel: ParallelConfig, ranks: int) -> int:
    """Memory of one rank's device for weights that an adapter leaves as they are; arguments as of `held_bytes`."""
    if parallel.strategy != "deepspeed":
        return parameters * compute_bytes
    if parallel.offload == "parameters":
        return 0
    # The module has one dtype, at stage 0 that of the master weights.
    stored = _MASTER_BYTES if parallel.zero_stage == 0 else compute_bytes
    return parameters * stored // (ranks if parallel.zero_stage == 3 else 1)


def checkpoint_bytes(parameters: int, compute_bytes: int, parallel: ParallelConfig) -> int:
    """Size of one checkpoint on disk: what is trained, and the optimizer state of all ranks."""
    weights = compute_bytes + _MASTER_BYTES if _in_optimizer(parallel) else _MASTER_BYTES
    return parameters * (weights + _MOMENTS_BYTES)


def cache_bytes_per_position(settings: Mapping[str, Any], itemsize: int) -> int:
    """Keys and values of one token in a cache of numbers of ``itemsize`` bytes, by the model's ``config.json``."""
    queries = settings["num_attention_heads"]
    head_size = settings.get("head_dim") or settings["hidden_size"] // queries
    size: int = 2 * settings["num_hidden_layers"] * settings.get("num_key_value_heads", queries) * head_size * itemsize
    return size


def size_text(count: int) -> str:
    """Bytes as people read them, decimal."""
    return f"{count / 1e9:.1f} GB" if abs(count) >= 1e9 else f"{count / 1e6:.1f} MB"


def _in_optimizer(parallel: ParallelConfig) -> bool:
    """Whether the optimizer has the master weights, and not the module."""
    return parallel.strategy == "deepspeed" and parallel.zero_stage > 0


def _compute_bytes(config: TrainConfig, device: Device) -> int:
    low = config.model.dtype == "bfloat16" or (config.model.dtype == "auto" and device.on_gpu)
    return 2 if low else 4


def _trained_parameters(config: TrainConfig, size: ModelSize) -> int:
    if config.model.lora.r == 0:
        return size.parameters
    from trainer.planning.simulation import adapter_size  # torch takes seconds to import

    return adapter_size(json.dumps(size.settings), config.model.lora.model_dump_json())


def _held_bytes(config: TrainConfig, size: ModelSize, device: Device, ranks: int) -> int:
    parallel, compute_bytes = config.parallel, _compute_bytes(config, device)
    if config.model.lora.r == 0:
        return held_bytes(size.parameters, compute_bytes, config.algorithm.kl_coef > 0, parallel, ranks)
    of_adapter = held_bytes(_trained_parameters(config, size), compute_bytes, False, parallel, ranks)
    return of_adapter + _frozen_bytes(size.parameters, compute_bytes, parallel, ranks)


def _vllm_bytes(config: TrainConfig, device: Device) -> int:
    """Device memory of vLLM when awake; 0 where none shares the device. Assumes vLLM is installed on a GPU."""
    rollout = config.rollout
    if rollout.engine == "transformers" or rollout.vllm.mode == "server" or not device.on_gpu:
        return 0
    return round(rollout.vllm.gpu_memory_utilization * device.total_bytes)


def _stored_bytes(config: TrainConfig, compute_bytes: int) -> int:
    """Bytes of a stored parameter: the compute dtype's, unless the module itself holds the master weights."""
    if config.parallel.strategy == "deepspeed":
        return compute_bytes if config.parallel.zero_stage > 0 else _MASTER_BYTES
    return compute_bytes if config.model.lora.r > 0 else _MASTER_BYTES


def _microbatch_bytes(config: TrainConfig, size: ModelSize, device: Device, ranks: int) -> int:
    """Bytes for a microbatch of the longest rows that fill its token budget."""
    import torch  # takes seconds, as the simulation does

    from trainer.planning.simulation import Microbatch, microbatch_bytes

    optim, compute_bytes = config.optim, _compute_bytes(config, device)
    own = max(1, optim.update_batch_size // ranks)  # rows of an update batch
    longest = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    rows = min(own, math.ceil(optim.tokens_per_microbatch / longest))
    length = longest if rows in (1, own) else optim.tokens_per_microbatch // rows
    dtypes = {2: torch.bfloat16, 4: torch.float32}
    return microbatch_bytes(
        Microbatch(
            json.dumps(size.settings),
            rows,
            length,
            stored=dtypes[_stored_bytes(config, compute_bytes)],
            computed=dtypes[compute_bytes],
            chunk_mb=None,
            on_gpu=device.on_gpu,
            recomputes=config.model.gradient_checkpointing,
            stores_scores=config.model.attn_implementation == "eager",
            adapter=config.model.lora.model_dump_json() if config.model.lora.r > 0 else "",
            trained=dtypes[compute_bytes if _in_optimizer(config.parallel) else _MASTER_BYTES],
        )
    )


def _step_bytes(trained: int, parallel: ParallelConfig, ranks: int) -> int:
    """Bytes for an optimizer step: DeepSpeed copies a rank's gradients into one tensor."""
    if not _in_optimizer(parallel) or parallel.offload != "none":
        return 0
    return _GRADIENT_BYTES * trained // ranks


def _exchanged_bytes(size: ModelSize, compute_bytes: int, config: TrainConfig, ranks: int) -> int:
    """Two buckets of gradients and the float32 in which one is reduced; at stage 3 parameters that are whole."""
    parallel = config.parallel
    if not _in_optimizer(parallel):
        return 0
    buckets = min(REDUCED_TOGETHER, _trained_parameters(config, size)) * (2 * compute_bytes + _GRADIENT_BYTES)
    if parallel.zero_stage < 3 or ranks == 1:
        return buckets
    return buckets + min(_WHOLE_TOGETHER, size.parameters) * compute_bytes


def _transformers_bytes(config: TrainConfig, size: ModelSize, taken: int, ranks: int, device: Device) -> int:
    """The cache of what one rank samples at a time, and whole weights where they are in parts."""
    rollout, compute_bytes = config.rollout, _compute_bytes(config, device)
    if rollout.vllm.mode == "server" and rollout.engine != "transformers":
        return 0
    whole = size.parameters * compute_bytes if config.parallel.zero_stage == 3 and ranks > 1 else 0
    length = config.data.max_prompt_tokens + rollout.max_new_tokens
    positions = -(-rollout.prompts_per_step * rollout.group_size // ranks) * length
    if not device.on_gpu:
        positions = min(positions, CPU_BATCH_TOKENS)
    cache = positions * cache_bytes_per_position(size.settings, _stored_bytes(config, compute_bytes))
    if device.on_gpu:  # then the engine takes no more than is free
        cache = min(cache, max(0, device.total_bytes - taken - whole))
    return whole + cache


def _host_bytes(size: ModelSize, config: TrainConfig, ranks: int, device: Device) -> int:
    """Host bytes of all ranks: libraries, and the larger of weights being read and tensors offloaded or saved."""
    parallel, compute_bytes = config.parallel, _compute_bytes(config, device)
    stored = size.parameters * _stored_bytes(config, compute_bytes)
    reading = stored * (1 if parallel.strategy == "deepspeed" and parallel.zero_stage == 3 else ranks)
    trained = _trained_parameters(config, size)
    saving = checkpoint_bytes(trained, compute_bytes, parallel)
    kept = trained * (_MASTER_BYTES + _MOMENTS_BYTES) if parallel.offload != "none" else 0
    kept += size.parameters * compute_bytes if parallel.offload == "parameters" else 0
    return ranks * _PROCESS_BYTES[True] + max(reading, kept + saving)


def _remedies(config: TrainConfig, found: Footprint) -> Iterator[dict[str, Any]]:
    """Changes to try, those that cost least speed first."""
    device, engine, size = found.device, _vllm_bytes(config, found.device), model_size(config.model.name_or_path)
    left = device.total_bytes - (found.sampling - engine)
    if size and 2 * size.parameters * _compute_bytes(config, device) < left < engine:
        yield {"rollout.vllm.gpu_memory_utilization": math.floor(100 * left / device.total_bytes) / 100}
    smaller: dict[str, Any] = {"optim.tokens_per_microbatch": max(1, config.optim.tokens_per_microbatch // 4)}
    if not config.model.gradient_checkpointing:
        smaller["model.gradient_checkpointing"] = True
    yield smaller
    if found.ranks > 1:
        sharded = {"parallel.strategy": "deepspeed", "parallel.zero_stage": 3}
        yield sharded
        yield {**sharded, **smaller}
        yield {**sharded, **smaller, "parallel.offload": "optimizer"}
