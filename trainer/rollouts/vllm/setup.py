"""The start options of an engine: everything that two runs must have in common to share one."""

import importlib.util
import os
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from trainer.config.rollout import VllmConfig
from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError
from trainer.parallel.device import compute_dtype, dtype_name
from trainer.parallel.gpus import SHARE_VARIABLE
from trainer.policy.load import model_source

# vLLM makes room for this many tokens of prompts at one time, and for the logits of so many
# requests: its own defaults on large GPUs, 16,384 and 1,024, take 2 to 4 GB beside a trainer that
# needs them.
_GPU_STEP_TOKENS = 8192
# of what weights leave of a share of a GPU; the rest is for activations and graphs
_CACHE_FRACTION = 0.8
FEWEST_REQUESTS = 16
MOST_REQUESTS = 512
CPU_KV_CACHE_MB = 256
CPU_STEP_TOKENS = 4096
CPU_BLOCK_SIZE = 32  # the smallest on a CPU; only whole blocks of a prefix are shared
INSTALL = "in the clone of loptune: make install-gpu"


def vllm_installed() -> bool:
    """Return whether vLLM can be imported."""
    return importlib.util.find_spec("vllm") is not None


def context_length(config: TrainConfig, model: PreTrainedModel) -> int:
    """Return how many tokens the longest request of a run can have, or
    ``rollout.vllm.max_model_len``.

    Raises:
        ConfigError: a prompt and its completion can be longer than the engine's or the model's
            context.
    """
    completion = config.rollout.max_new_tokens
    longest = config.data.max_prompt_tokens + completion
    limit = config.rollout.vllm.max_model_len or longest
    positions = getattr(model.config, "max_position_embeddings", None) or limit
    for key, allowed in (
        ("rollout.vllm.max_model_len", limit),
        ("max_position_embeddings of the model", positions),
    ):
        if longest > allowed:
            raise ConfigError(
                f"a prompt of {config.data.max_prompt_tokens} and a completion of {completion} "
                f"tokens need a context of {longest}, but {key} is {allowed}",
                "data.max_prompt_tokens, rollout.max_new_tokens",
                f"lower them to {allowed} tokens together"
                + (", or raise rollout.vllm.max_model_len" if limit < positions else ""),
            )
    return limit


def check_dense(model: PreTrainedModel) -> None:
    """Check that vLLM can take the policy's weights.

    Raises:
        ConfigError: a mixture of experts. transformers keeps a layer's experts in one tensor, under
            a name that no file of weights has and vLLM's loading does not know.
    """
    text = model.config.get_text_config()
    if any(
        getattr(text, name, None)
        for name in ("num_experts", "num_local_experts", "n_routed_experts")
    ):
        raise ConfigError(
            f"{text.model_type} is a mixture of experts, whose weights vLLM cannot take over here",
            "rollout.engine",
            "rollout.engine=transformers, or a dense model",
        )


def transfer_kind(settings: VllmConfig, on_gpus: bool) -> Literal["http", "nccl"]:
    """Return the transport of weights to a server; `auto` is NCCL between GPUs, HTTP elsewhere.

    By HTTP the 6 GB of a model of 3 billion parameters are 8 GB of base64 in every step.
    """
    if settings.server_weight_transfer == "auto":
        return "nccl" if on_gpus else "http"
    return settings.server_weight_transfer


def without_dual_chunk_attention(config: Any) -> Any:
    """Return the model's configuration without its attention for contexts of a million tokens.

    Qwen2.5-1M models ask vLLM for it, which needs a backend of its own; the policy in transformers
    attends plainly, and below a chunk (262,144 tokens) the two are the same.
    """
    if hasattr(config, "dual_chunk_attention_config"):
        del config.dual_chunk_attention_config
    return config


@dataclass(frozen=True)
class EngineSetup:
    """The start options of an engine."""

    source: str  # folder or hub name of the model's config.json
    max_model_len: int  # context [tokens]
    dtype: str = "float32"  # compute dtype, float32 or bfloat16
    settings: VllmConfig = field(default_factory=VllmConfig)
    requests: int | None = None  # decoded at one time, the others wait; vLLM's default if None
    revision: str | None = None  # on the hub
    trust_remote_code: bool = False  # run code of the model folder


def engine_setup(config: TrainConfig, model: PreTrainedModel, ranks: int) -> EngineSetup:
    """Return the setup of a run's engines.

    Raises:
        ConfigError: a request can be longer than the context.
        MissingError: no such model.
    """
    dtype = dtype_name(compute_dtype(config.model, next(model.parameters()).device))
    settings = _on_a_share(config.rollout.vllm, model, dtype)
    requests = -(
        -config.rollout.prompts_per_step
        * config.rollout.group_size
        * settings.tensor_parallel
        // ranks
    )
    return EngineSetup(
        model_source(config.model),
        context_length(config, model),
        dtype,
        settings,
        settings.max_num_seqs or min(MOST_REQUESTS, max(FEWEST_REQUESTS, requests)),
        config.model.revision,
        config.model.trust_remote_code,
    )


def _on_a_share(settings: VllmConfig, model: PreTrainedModel, dtype: str) -> VllmConfig:
    """Return the settings of an engine that may use a fraction of its GPU, beside other trials.

    By itself vLLM derives the size of its cache from the free memory of the whole GPU, and stops if
    a neighbor frees some while it measures. With a given size it does not measure.
    """
    share = float(os.environ.get(SHARE_VARIABLE, "1"))
    device = next(model.parameters()).device
    if share >= 1 or device.type != "cuda":
        return settings
    utilization = share * settings.gpu_memory_utilization
    weights = model.num_parameters() * getattr(torch, dtype).itemsize
    left = utilization * torch.cuda.get_device_properties(device).total_memory - weights
    cache_mb = max(1, int(_CACHE_FRACTION * left) >> 20)
    shared = {
        "gpu_memory_utilization": utilization,
        "kv_cache_mb": settings.kv_cache_mb or cache_mb,
    }
    return settings.model_copy(update=shared)


def llm_options(setup: EngineSetup, device: torch.device, ranks: int) -> dict[str, Any]:
    """Return the arguments for `vllm.LLM`."""
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
        # vLLM's own all-reduce needs to see its peers' devices, which a scheduler may hide from
        # each rank.
        options["disable_custom_all_reduce"] = torch.cuda.device_count() < settings.tensor_parallel
    if on_cpu:
        options |= {
            "kv_cache_memory_bytes": (settings.kv_cache_mb or CPU_KV_CACHE_MB) << 20,
            "block_size": CPU_BLOCK_SIZE,
            # A request whose prompt is cut in two winds its generator back, which CPU generators
            # cannot.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_STEP_TOKENS, setup.max_model_len),
        }
    else:
        options["max_num_batched_tokens"] = _GPU_STEP_TOKENS
        if settings.kv_cache_mb:
            options["kv_cache_memory_bytes"] = settings.kv_cache_mb << 20
    return options
