"""The command line of a vLLM server that samples for trainers: vLLM's own server, started as they
need it.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

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
    INSTALL,
    EngineSetup,
    context_length,
    llm_options,
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
    # Without the mode vLLM has no routes that take weights; with it, anybody may use them but for
    # our guard.
    mode = {"VLLM_SERVER_DEV_MODE": "1", TOKEN_VARIABLE: server_token()}
    os.execve(command[0], command, {**NO_FLASHINFER_SAMPLER, **os.environ, **mode})


def server_command(
    config: TrainConfig, host: str, port: int, gpu_memory_utilization: float | None
) -> list[str]:
    """Return the command line of the server: the run's model with placeholder weights and the run's
    context.

    ``gpu_memory_utilization`` is None on a CPU. A server shares its GPU with nobody, so that of
    `rollout.vllm`, made for an engine beside a trainer, is not its default.
    """
    on_gpu = gpu_memory_utilization is not None
    device = torch.device("cuda" if on_gpu else "cpu")
    model = config.model
    settings = config.rollout.vllm
    source = model_source(model)
    shape = AutoConfig.from_pretrained(
        source, revision=model.revision, trust_remote_code=model.trust_remote_code
    )
    setup = EngineSetup(
        source,
        context_length(config, SimpleNamespace(config=shape)),
        dtype_name(compute_dtype(model, device)),
        settings.model_copy(update={"sleep_level": 0}),
        revision=model.revision,
        trust_remote_code=model.trust_remote_code,
    )
    is_dual = hasattr(shape, "dual_chunk_attention_config")
    options = llm_options(setup, device, ranks=1) | {
        "hf_overrides": {"dual_chunk_attention_config": None} if is_dual else None,
        "disable_log_stats": None,
        "gpu_memory_utilization": gpu_memory_utilization,
        "host": host,
        "port": port,
        "middleware": f"{Guard.__module__}.{Guard.__name__}",
        "enable_scale_out": True,
        "weight_transfer_config": {"backend": BACKENDS[transfer_kind(settings, on_gpu)]},
    }
    if on_gpu:
        options["max_num_batched_tokens"] = None  # vLLM's own: there is no trainer to make room for
    # `vllm serve` is the same server, but needs the package's name to be vllm, which that for CPUs
    # is not.
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *_words(options)]


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield arguments of `vllm.LLM` as words of a command line; None is left out."""
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        elif value is not None:
            yield f"--{flag}"
            yield value if isinstance(value, str) else json.dumps(value)
