"""Analytical estimate of a run's memory and disk use. On an H200, two estimates were off by 8% and
11%.

A run prints the measured memory of its first step next to the estimate, and logs ``memory/peak``.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loptune.errors import ConfigError
from loptune.files import format_bytes
from trainer.config.schema import TrainConfig
from trainer.planning.advice import Advice
from trainer.policy.architectures import CHUNK_BYTES, ModelSize, model_size

_log = logging.getLogger(__name__)

GPU_BYTES = 80 * 10**9  # memory of the GPUs that the presets target
REDUCE_BUCKET_ELEMENTS = 50_000_000  # elements of a DeepSpeed reduce bucket
CPU_BATCH_TOKENS = 131072  # KV cache positions of the transformers engine on a CPU
_MAX_LIVE_PARAMETERS = 10**9  # parameters gathered at one time under stage 3: DeepSpeed's default
_FLOAT32 = 4  # bytes of a master weight or gradient, also with bfloat16 compute
_MOMENTS = 8  # bytes of Adam's two float32 moments
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # keys of config.json
# Assumptions for memory outside of torch: CUDA context with cuBLAS and NCCL, whose buffers grow
# with the number of peers, and a sleeping vLLM engine.
_CONTEXT_BYTES = 15 * 10**8
_CONTEXT_BYTES_MANY_RANKS = 25 * 10**8
_MANY_RANKS = 4
_ASLEEP_BYTES = 10**9
# host memory of a rank's libraries, with and without CUDA
_PROCESS_BYTES = {True: 5 * 10**9, False: 10**9}
_NEEDED = {
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
}


@dataclass(frozen=True)
class Device:
    """The device of a rank."""

    on_gpu: bool = True
    total_bytes: int = GPU_BYTES  # GPU memory, or the host memory that all ranks share on a CPU


@dataclass(frozen=True)
class Footprint:
    """Estimated bytes: device memory per rank, host memory of all ranks, checkpoint size."""

    ranks: int
    device: Device
    held: int  # static device memory: weights, gradients, optimizer state, reference
    training: int  # peak device memory while training
    sampling: int  # peak device memory while sampling
    host: int
    checkpoint: int

    @property
    def margin(self) -> int:
        """Free device memory at the peak; negative if the run does not fit."""
        available = self.device.total_bytes
        if not self.device.on_gpu:  # the ranks share the host's memory
            available //= self.ranks
        return available - max(self.training, self.sampling)

    def as_json(self) -> dict[str, Any]:
        """Return the footprint as JSON values, margin included."""
        return {**asdict(self), "margin": self.margin}

    def lines(self) -> Iterator[str]:
        """Yield the estimate as lines of text."""
        what = "GPU" if self.device.on_gpu else "CPU"
        ranks = f"each of {self.ranks} ranks" if self.ranks > 1 else "one rank"
        worst = (
            f"{format_bytes(self.training)} while training and {format_bytes(self.sampling)} while "
            "sampling"
        )
        yield f"estimate for {ranks} on a {what} with {format_bytes(self.device.total_bytes)}:"
        yield f"static {format_bytes(self.held)}, peak {worst}, margin {format_bytes(self.margin)};"
        checkpoint = format_bytes(self.checkpoint)
        yield f"host memory {format_bytes(self.host)}; checkpoint size {checkpoint}"


def footprint(
    config: TrainConfig, ranks: int, device: Device | None = None, size: ModelSize | None = None
) -> Footprint | None:
    """Estimate a run's footprint on ``ranks`` ranks. Return None if ``size`` is not given and the
    model's ``config.json`` is not on this machine, or if it lacks a required field.

    The default device is an 80 GB GPU.
    """
    size = size or model_size(config.model.name_or_path)
    if size is None or any(not size.settings.get(name) for name in _NEEDED):
        return None
    run = RunMemory(config, size, device or Device(), ranks)
    training = run.training()
    sampling = run.sampling()
    host = ranks * max(training, sampling)  # on CPUs all memory is the host's
    if run.device.on_gpu:
        host = run.host()
    return Footprint(
        ranks=ranks,
        device=run.device,
        held=run.held(),
        training=training,
        sampling=sampling,
        host=host,
        checkpoint=run.checkpoint(),
    )


def check_fits(
    config: TrainConfig, ranks: int, device: Device, quiet: bool = False
) -> Footprint | None:
    """Estimate the memory of a run and, unless ``quiet``, warn if it does not fit. Return the
    estimate, or None if the model's size is unknown.

    Raises:
        ConfigError: the run does not fit, and `parallel.strict_memory` is set.
    """
    estimate = footprint(config, ranks, device)
    if estimate is None or estimate.margin >= 0:
        return estimate
    what = f"the run does not fit into memory: {' '.join(estimate.lines())}"
    remedies = (
        "lower rollout.vllm.gpu_memory_utilization or optim.tokens_per_microbatch, set "
        "model.gradient_checkpointing=true, or shard: parallel.strategy=deepspeed "
        "parallel.zero_stage=3"
    )
    if config.parallel.strict_memory:
        raise ConfigError(
            what,
            config.model.name_or_path,
            f"{remedies}; or run it anyway: parallel.strict_memory=false",
            key="parallel.strict_memory",
            code="does-not-fit",
        )
    if not quiet:
        _log.warning("%s", Advice(what, config.model.name_or_path, remedies))
    return estimate


def planned_checkpoint_bytes(
    config: TrainConfig, on_gpu: bool, weights_only: bool = False
) -> int | None:
    """Return the size of a checkpoint, or of its weights only; None if the model size is
    unknown.
    """
    size = model_size(config.model.name_or_path)
    if size is None:
        return None
    run = RunMemory(config, size, Device(on_gpu))
    return run.trained * run.stored if weights_only else run.checkpoint()


def cache_bytes_per_position(settings: Mapping[str, Any], itemsize: int) -> int:
    """Return the KV cache bytes per token for elements of ``itemsize`` bytes, from the model's
    ``config.json``.
    """
    return 2 * int(settings["num_hidden_layers"]) * _key_size(settings) * itemsize


def _head_size(settings: Mapping[str, Any]) -> int:
    return int(
        settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    )


def _key_size(settings: Mapping[str, Any]) -> int:
    heads = settings.get("num_key_value_heads", settings["num_attention_heads"])
    return int(heads * _head_size(settings))


def reduce_bucket_elements(stage: int, trained: int, largest: int) -> int:
    """Return the elements of a DeepSpeed reduce bucket, from the number of trained elements and the
    elements of the largest trained parameter.

    At stages 1 and 2 no parameter may exceed the bucket. DeepSpeed reduces a larger gradient in
    place instead of in the bucket. With ``overlap_comm``, ranks that do not own the parameter free
    that gradient while the reduction stream still writes into it, so later gradients of the
    backward pass may be overwritten. Stage 3 keeps such gradients alive.
    """
    bucket = REDUCE_BUCKET_ELEMENTS
    if stage in (1, 2):
        bucket = max(bucket, largest)
    return min(trained, bucket)


@dataclass(frozen=True)
class RunMemory:
    """The terms of a footprint, in bytes unless noted."""

    config: TrainConfig
    size: ModelSize
    device: Device
    ranks: int = 1

    @property
    def stage(self) -> int:
        """ZeRO stage, 0 without DeepSpeed. At 0 the module has the master weights."""
        parallel = self.config.parallel
        return parallel.zero_stage if parallel.strategy == "deepspeed" else 0

    @property
    def computed(self) -> int:
        """Itemsize of the compute dtype."""
        dtype = self.config.model.dtype
        if dtype == "auto":
            dtype = "bfloat16" if self.device.on_gpu else "float32"
        return 2 if dtype == "bfloat16" else _FLOAT32

    @property
    def stored(self) -> int:
        """Itemsize of a trained parameter in the module."""
        return self.computed if self.stage else _FLOAT32

    @property
    def module(self) -> int:
        """Itemsize of a frozen parameter in the module; under DeepSpeed all parameters have one
        dtype.
        """
        apart = self.config.model.lora.r > 0 and self.config.parallel.strategy != "deepspeed"
        return self.computed if apart else self.stored

    @property
    def trained(self) -> int:
        """Number of trained parameters: all, or the adapter's r * (inputs + outputs) per adapted
        layer.
        """
        lora = self.config.model.lora
        if lora.r == 0:
            return self.size.parameters
        settings = self.size.settings
        hidden = settings["hidden_size"]
        keys = hidden + _key_size(settings)
        queries = hidden + _head_size(settings) * settings["num_attention_heads"]
        inputs_plus_outputs = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": queries}
        inputs_plus_outputs |= dict.fromkeys(
            ("gate_proj", "up_proj", "down_proj"), hidden + settings["intermediate_size"]
        )
        adapted = list(inputs_plus_outputs) if lora.adapts_all else lora.target_modules
        return int(
            lora.r
            * settings["num_hidden_layers"]
            * sum(inputs_plus_outputs.get(name, 0) for name in adapted)
        )

    def held(self) -> int:
        """Return the static memory: weights, gradients, optimizer state, and the reference or
        frozen base model.
        """
        offload = self.config.parallel.offload
        weights = float(self.trained * self.stored)
        if self.config.model.lora.r > 0:
            weights += self.size.parameters * self.module
        elif self.config.algorithm.kl_coef > 0:
            is_compiled = self.config.model.compile != "none"
            itemsize = self.stored if is_compiled else self.computed
            weights += self.size.parameters * itemsize
        optimizer = float(self.trained * _MOMENTS)
        gradients = float(self.trained * _FLOAT32)
        if self.stage > 0:
            optimizer += self.trained * _FLOAT32  # master weights
        # ZeRO shards the optimizer state from stage 1, gradients from 2, and weights at 3
        if self.stage >= 1:
            optimizer /= self.ranks
        if self.stage >= 2:
            gradients /= self.ranks
        if self.stage == 3:
            weights /= self.ranks
        if offload == "parameters":
            weights = 0
        if offload != "none":
            optimizer = 0
        return round(weights + optimizer + gradients)

    def training(self) -> int:
        """Return a rank's peak device memory during training."""
        engine = self._vllm()
        if self.config.rollout.vllm.sleep_level:
            engine = min(_ASLEEP_BYTES, engine)
        return self._taken() + engine + self.microbatch() + self._exchanged()

    def sampling(self) -> int:
        """Return a rank's peak device memory during sampling: vLLM's fraction, or a KV cache plus
        gathered parameters.
        """
        rollout = self.config.rollout
        if self._vllm() or (rollout.vllm.mode == "server" and rollout.engine != "transformers"):
            return self._taken() + self._vllm()
        taken = self._taken()
        if self.stage == 3 and self.ranks > 1:
            taken += self.size.parameters * self.computed
        length = self.config.data.max_prompt_tokens + self.config.longest_completion
        positions = math.ceil(rollout.prompts_per_step * rollout.group_size / self.ranks) * length
        if not self.device.on_gpu:
            positions = min(positions, CPU_BATCH_TOKENS)
        cache = positions * cache_bytes_per_position(self.size.settings, self.stored)
        if self.device.on_gpu:  # on a GPU, the transformers engine limits itself to free memory
            cache = min(cache, max(0, self.device.total_bytes - taken))
        return taken + cache

    def host(self) -> int:
        """Return the host memory of all GPU ranks: libraries plus the larger of loading (weights)
        and training (offloaded state and a checkpoint copy).
        """
        offload = self.config.parallel.offload
        kept = 0
        if offload != "none":
            kept += self.trained * (_FLOAT32 + _MOMENTS)
        if offload == "parameters":
            kept += self.size.parameters * self.computed
        reading = self.ranks * self.size.parameters * self.module
        return self.ranks * _PROCESS_BYTES[True] + max(reading, kept + self.checkpoint())

    def checkpoint(self) -> int:
        """Return the checkpoint size: float32 trained weights and Adam's moments, plus a
        compute-dtype copy if the optimizer has the master weights.
        """
        saved = _FLOAT32 + _MOMENTS
        if self.stage:
            saved += self.computed
        return self.trained * saved

    def microbatch(self) -> int:
        """Return the activation memory of all layers, plus two chunks of logits and the head's
        gradient.

        With gradient checkpointing: the inputs of all layers, plus the larger of one layer's
        activations and the head. Per token a layer stores, for each of two norms, the float32
        input, the result and the scaled result; queries, keys, values and attention output; gate,
        its activation, up, and their product. Attention scores are not stored.
        """
        config = self.config
        settings = self.size.settings
        hidden = int(settings["hidden_size"])
        layers = int(settings["num_hidden_layers"])
        inner = int(settings["intermediate_size"])
        vocabulary = int(settings["vocab_size"])
        tokens = max(
            config.data.max_prompt_tokens + config.rollout.max_new_tokens,
            config.optim.tokens_per_microbatch,
        )
        # Autocast runs only linear layers in the lower dtype, and copies their weights and inputs.
        autocast = self.module > self.computed
        inputs = 2
        copies = 0
        if autocast:
            inputs = 5
            copies = self.size.parameters * self.computed
        norms = hidden * (2 * _FLOAT32 + 2 * self.module + inputs * self.computed)
        linear = 2 * hidden + 2 * _key_size(settings) + 4 * inner
        of_layer = norms + linear * self.computed
        head = 2 * min(CHUNK_BYTES[self.device.on_gpu], tokens * vocabulary * _FLOAT32)
        if config.model.lora.r == 0:
            head += vocabulary * hidden * (_FLOAT32 + self.computed)
        if not config.model.gradient_checkpointing:
            return copies + tokens * layers * of_layer + head
        gradients = 3 * inner * self.computed  # gradients of gate, up and product
        return (
            copies
            + tokens * layers * hidden * self.module
            + max(tokens * (of_layer + gradients), head)
        )

    def _taken(self) -> int:
        """Return the static memory, including the memory of libraries outside of torch."""
        if not self.device.on_gpu:
            return self.held() + _PROCESS_BYTES[False]
        if self.ranks >= _MANY_RANKS:
            return self.held() + _CONTEXT_BYTES_MANY_RANKS
        return self.held() + _CONTEXT_BYTES

    def _vllm(self) -> int:
        """Return vLLM's device memory when awake, or 0 if it does not share the device. On a GPU
        vLLM is assumed to be installed.
        """
        rollout = self.config.rollout
        if (
            rollout.engine == "transformers"
            or rollout.vllm.mode == "server"
            or not self.device.on_gpu
        ):
            return 0
        return round(rollout.vllm.gpu_memory_utilization * self.device.total_bytes)

    def _largest_trained(self) -> int:
        """Return the number of elements of the largest trained parameter; 0 for an adapter, whose
        parameters never exceed a bucket.
        """
        if self.config.model.lora.r > 0:
            return 0
        settings = self.size.settings
        hidden: int = settings["hidden_size"]
        width: int = settings.get("intermediate_size") or 0
        expert_width: int = settings.get("moe_intermediate_size") or width
        experts: int = max(settings.get(key) or 0 for key in _EXPERT_COUNTS)

        embedding: int = settings["vocab_size"] * hidden
        mlp_matrix = width * hidden
        # transformers stores the gate and up projections of all experts as one parameter
        fused_experts = 2 * experts * expert_width * hidden
        largest: int = max(embedding, mlp_matrix, fused_experts)
        return largest

    def _exchanged(self) -> int:
        """Return the communication buffers: two gradient buckets and a float32 copy of one, plus
        gathered parameters at stage 3.
        """
        if not self.stage:
            return 0
        elements = reduce_bucket_elements(self.stage, self.trained, self._largest_trained())
        buckets = elements * (2 * self.computed + _FLOAT32)
        if self.stage < 3 or self.ranks == 1:
            return buckets
        return buckets + min(_MAX_LIVE_PARAMETERS, self.size.parameters) * self.computed
