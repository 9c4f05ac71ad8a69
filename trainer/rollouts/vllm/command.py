"""The command line of a vLLM server that samples for trainers: vLLM's own server, started as they need it."""

import json
import os
import sys
from types import SimpleNamespace
from typing import NoReturn

import torch
from transformers import AutoConfig

from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError
from trainer.parallel.device import compute_dtype, dtype_name, local_device
from trainer.parallel.gpus import check_compiler
from trainer.policy.load import model_source
from trainer.rollouts.vllm.client import BACKENDS
from trainer.rollouts.vllm.containment import NO_FLASHINFER_SAMPLER
from trainer.rollouts.vllm.guard import TOKEN_VARIABLE, Guard, server_token
from trainer.rollouts.vllm.setup import (
    CPU_BLOCK_SIZE,
    CPU_KV_CACHE_MB,
    CPU_STEP_TOKENS,
    INSTALL,
    context_length,
    transfer_kind,
    vllm_installed,
)


def serve(config: TrainConfig, host: str, port: int, gpu_memory_utilization: float) -> NoReturn:
    """Become the server; does not return.

    Raises:
        ConfigError: vLLM is not installed, or a request can exceed the model's context.
        StorageError: the server's token cannot be kept.
        MissingError: no such model, no GPU where one is insisted on, or no compiler beside a GPU.
    """
    if not vllm_installed():
        raise ConfigError("vLLM is not installed", "trainer serve", INSTALL)
    device = local_device(config.parallel.device)
    share = gpu_memory_utilization if device.type == "cuda" else None
    if device.type == "cuda":
        check_compiler()
    command = server_command(config, host, port, share)
    # Without the mode vLLM has no routes that take weights; with it, anybody may use them but for our guard.
    mode = {"VLLM_SERVER_DEV_MODE": "1", TOKEN_VARIABLE: server_token()}
    os.execve(command[0], command, {**NO_FLASHINFER_SAMPLER, **os.environ, **mode})


def server_command(config: TrainConfig, host: str, port: int, gpu_memory_utilization: float | None) -> list[str]:
    """The command line of the server: the run's model with placeholder weights and the run's context.

    ``gpu_memory_utilization`` is None on a CPU. A server shares its GPU with nobody, so that of `rollout.vllm`,
    made for an engine beside a trainer, is not its default.
    """
    on_gpu = gpu_memory_utilization is not None
    dtype = compute_dtype(config.model, torch.device("cuda" if on_gpu else "cpu"))
    source, settings = model_source(config.model), config.rollout.vllm
    shape = AutoConfig.from_pretrained(
        source, revision=config.model.revision, trust_remote_code=config.model.trust_remote_code
    )
    context = context_length(config, SimpleNamespace(config=shape))
    # `vllm serve` is the same server, but needs the package's name to be vllm, which that for CPUs is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", source]
    command += ["--middleware", f"{Guard.__module__}.{Guard.__name__}"]
    command += ["--host", host, "--port", str(port), "--dtype", dtype_name(dtype)]
    command += ["--max-model-len", str(context), "--tensor-parallel-size", str(settings.tensor_parallel)]
    command += ["--load-format", "dummy", "--skip-tokenizer-init", "--generation-config", "vllm"]
    command += ["--enable-prefix-caching", "--logprobs-mode", "processed_logprobs", "--enable-scale-out"]
    command += ["--weight-transfer-config", json.dumps({"backend": BACKENDS[transfer_kind(settings, on_gpu)]})]
    if config.model.revision:
        command += ["--revision", config.model.revision]
    if config.model.trust_remote_code:
        command += ["--trust-remote-code"]
    if hasattr(shape, "dual_chunk_attention_config"):
        # Below a chunk of 262,144 tokens it is plain attention, which needs no backend of its own.
        command += ["--hf-overrides", json.dumps({"dual_chunk_attention_config": None})]
    if settings.enforce_eager or not on_gpu:
        command += ["--enforce-eager"]
    memory_mb = settings.kv_cache_mb or (None if on_gpu else CPU_KV_CACHE_MB)
    if memory_mb:
        command += ["--kv-cache-memory-bytes", str(memory_mb << 20)]
    if on_gpu:
        command += ["--gpu-memory-utilization", str(gpu_memory_utilization)]
    else:
        # As `trainer.rollouts.vllm.engine` sets them for an engine in the trainer's process.
        command += ["--block-size", str(CPU_BLOCK_SIZE), "--no-enable-chunked-prefill"]
        command += ["--max-num-batched-tokens", str(max(CPU_STEP_TOKENS, context))]
    return command
