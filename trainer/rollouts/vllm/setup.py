"""vLLM engine start options. Two runs can share an engine only if these are equal."""

import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from loptune.errors import ConfigError
from trainer.config.rollout import VllmConfig
from trainer.config.schema import TrainConfig
from trainer.parallel.device import compute_dtype, dtype_name
from trainer.parallel.gpus import GPU_FRACTION_VARIABLE
from trainer.policy.load import model_source
from trainer.rollouts.engine import MAX_EXCLUDED

# vLLM reserves memory for this many prefill tokens, and for the logits of max_num_seqs requests.
# Its defaults on large GPUs (16,384 and 1,024) would take 2 to 4 GB from the trainer.
_GPU_MAX_BATCHED_TOKENS = 8192
# fraction of the memory left after weights that goes to the KV cache; the rest is for activations
# and CUDA graphs
_CACHE_FRACTION = 0.8
MIN_NUM_SEQS = 16
MAX_NUM_SEQS = 512
CPU_KV_CACHE_MB = 256
CPU_MAX_BATCHED_TOKENS = 4096
CPU_BLOCK_SIZE = 32  # minimum on a CPU; prefix caching only shares full blocks
INSTALL = "run make install-gpu in the loptune repository"


def vllm_installed() -> bool:
    """Return whether vLLM can be imported."""
    return importlib.util.find_spec("vllm") is not None


def context_length(config: TrainConfig) -> int:
    """Return the context length: ``rollout.vllm.max_model_len``, or else the longest possible
    request.

    Raises:
        ConfigError: prompt + completion can exceed ``rollout.vllm.max_model_len``.
    """
    completion = config.longest_completion
    longest = config.data.max_prompt_tokens + completion
    limit = config.rollout.vllm.max_model_len or longest
    if longest > limit:
        raise ConfigError(
            f"a prompt of {config.data.max_prompt_tokens} and a completion of {completion} tokens "
            f"need a context length of {longest}, but rollout.vllm.max_model_len is {limit}",
            ", ".join(["data.max_prompt_tokens", *config.limits_beyond(limit)]),
            f"lower them so that a prompt and a completion have at most {limit} tokens together, "
            "or raise rollout.vllm.max_model_len",
            code="context-too-short",
        )
    return limit


def check_excluded(count: int) -> None:
    """Check that vLLM can exclude this number of token ids from sampling.

    Raises:
        ConfigError: ``count`` exceeds `MAX_EXCLUDED`.
    """
    if count > MAX_EXCLUDED:
        raise ConfigError(
            f"{count} of the model's token ids are missing from the tokenizer, but vLLM can "
            f"exclude at most {MAX_EXCLUDED} ids from sampling",
            "rollout.engine",
            "use rollout.engine=transformers, or shrink the embedding: "
            "model.resize_token_embeddings(len(tokenizer))",
            key="rollout.engine",
            code="too-many-excluded",
        )


def without_dual_chunk_attention(config: Any) -> Any:
    """Remove dual chunk attention from the model's configuration.

    Qwen2.5-1M models enable it in vLLM, where it needs a special backend. The transformers policy
    uses full attention, which is identical below one chunk (262,144 tokens).
    """
    if hasattr(config, "dual_chunk_attention_config"):
        del config.dual_chunk_attention_config
    return config


@dataclass(frozen=True)
class EngineSetup:
    """The start options of an engine."""

    source: str  # folder or Hub name of the model's config.json
    max_model_len: int  # context [tokens]
    dtype: str = "float32"  # compute dtype, float32 or bfloat16
    settings: VllmConfig = field(default_factory=VllmConfig)
    requests: int | None = None  # max_num_seqs; None uses vLLM's default
    revision: str | None = None  # Hub revision
    trust_remote_code: bool = False  # allow code from the model folder


def engine_setup(config: TrainConfig, model: PreTrainedModel, ranks: int) -> EngineSetup:
    """Return the setup of a run's engines. ``ranks`` is the run's number of ranks.

    Raises:
        ConfigError: a request can be longer than the context.
        MissingError: no such model.
    """
    dtype = dtype_name(compute_dtype(config.model, next(model.parameters()).device))
    settings = _for_shared_gpu(config.rollout.vllm, model, dtype)
    max_num_seqs = -(
        -config.rollout.prompts_per_step
        * config.rollout.group_size
        * settings.tensor_parallel
        // ranks
    )
    source = model_source(config.model)
    return EngineSetup(
        source=source.name,
        max_model_len=context_length(config),
        dtype=dtype,
        settings=settings,
        requests=settings.max_num_seqs or min(MAX_NUM_SEQS, max(MIN_NUM_SEQS, max_num_seqs)),
        revision=source.revision,
        trust_remote_code=config.model.trust_remote_code,
    )


def _for_shared_gpu(settings: VllmConfig, model: PreTrainedModel, dtype: str) -> VllmConfig:
    """Scale the engine settings to this trial's fraction of a shared GPU.

    By default vLLM sizes its KV cache from the GPU's free memory, and fails if another process
    frees memory while it measures. With an explicit size it does not measure.
    """
    fraction = float(os.environ.get(GPU_FRACTION_VARIABLE, "1"))
    device = next(model.parameters()).device
    if fraction >= 1 or device.type != "cuda":
        return settings
    utilization = fraction * settings.gpu_memory_utilization
    weights = model.num_parameters() * getattr(torch, dtype).itemsize
    left = utilization * torch.cuda.get_device_properties(device).total_memory - weights
    cache_mb = max(1, int(_CACHE_FRACTION * left) >> 20)
    shared = {
        "gpu_memory_utilization": utilization,
        "kv_cache_mb": settings.kv_cache_mb or cache_mb,
    }
    return settings.model_copy(update=shared)


def llm_options(setup: EngineSetup, device: torch.device, ranks: int) -> dict[str, Any]:
    """Return the arguments for `vllm.LLM` on a rank's device, in a run with ``ranks`` ranks."""
    settings = setup.settings
    on_cpu = device.type == "cpu"
    options: dict[str, Any] = {
        "model": setup.source,
        "revision": setup.revision,
        "trust_remote_code": setup.trust_remote_code,
        "dtype": setup.dtype,
        "load_format": "dummy",
        "max_model_len": setup.max_model_len,
        "enforce_eager": settings.enforce_eager or on_cpu,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "tensor_parallel_size": settings.tensor_parallel,
        "enable_sleep_mode": settings.sleep_level > 0 and not on_cpu,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "disable_log_stats": True,
        "hf_overrides": without_dual_chunk_attention,
    }
    if setup.requests:
        options["max_num_seqs"] = setup.requests
    if ranks > 1:
        options["distributed_executor_backend"] = "external_launcher"
    if settings.tensor_parallel > 1:
        # vLLM's custom all-reduce exports the buffers of CUDA graphs by cudaIpcGetMemHandle, which
        # rejects memory of torch's expandable segments (vLLM issue 42609). It also needs access to
        # its peers' devices, which a scheduler may hide. NCCL needs neither.
        options["disable_custom_all_reduce"] = True
        # the fusion of all-reduce and norm uses FlashInfer's all-reduce, see `vllm_environment`
        options["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}
    if on_cpu:
        options |= {
            "kv_cache_memory_bytes": (settings.kv_cache_mb or CPU_KV_CACHE_MB) << 20,
            "block_size": CPU_BLOCK_SIZE,
            # With chunked prefill vLLM rewinds a request's generator, which CPU generators do not
            # support.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_MAX_BATCHED_TOKENS, setup.max_model_len),
        }
    else:
        options["max_num_batched_tokens"] = _GPU_MAX_BATCHED_TOKENS
        if _knows("enable_flashinfer_autotune"):
            # autotuning uses collectives of all ranks, but the ranks start their engines at
            # different times
            options["enable_flashinfer_autotune"] = False
        if settings.kv_cache_mb:
            options["kv_cache_memory_bytes"] = settings.kv_cache_mb << 20
    return options


def _knows(option: str) -> bool:
    """Return whether the installed vLLM has an engine option, without importing vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return False
    source = Path(next(iter(spec.submodule_search_locations))) / "engine" / "arg_utils.py"
    return source.is_file() and option in source.read_text("utf-8")
