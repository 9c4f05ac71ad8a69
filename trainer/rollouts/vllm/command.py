"""The command line of vLLM's server with the options that training needs."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch
from transformers import AutoConfig

from loptune.errors import ConfigError
from trainer.config.schema import TrainConfig
from trainer.parallel.device import compute_dtype, dtype_name, local_device
from trainer.parallel.gpus import check_compiler
from trainer.policy.load import model_source
from trainer.rollouts.vllm.client import BACKENDS
from trainer.rollouts.vllm.guard import TOKEN_VARIABLE, TokenMiddleware, server_token
from trainer.rollouts.vllm.isolation import vllm_environment
from trainer.rollouts.vllm.setup import (
    INSTALL,
    EngineSetup,
    context_length,
    llm_options,
    vllm_installed,
)
from trainer.rollouts.vllm.upload import UploadMiddleware


def serve(config: TrainConfig, host: str, port: int, gpu_memory_utilization: float) -> NoReturn:
    """Replace this process with the server; does not return. On a GPU, the server may use the
    fraction ``gpu_memory_utilization`` of its memory.

    Raises:
        ConfigError: vLLM is not installed, or a request can exceed its context.
        StorageError: the server's token cannot be stored.
        MissingError: unknown model, no GPU although one is required, or no C compiler.
    """
    if not vllm_installed():
        raise ConfigError("vLLM is not installed", "trainer serve", INSTALL, code="no-vllm")
    # Copied before `local_device` sets variables for training: the allocator's expandable segments
    # would break a server whose workers share buffers of CUDA graphs (vLLM issue 42609).
    environment = dict(os.environ)
    device = local_device(config.parallel.device)
    memory_utilization = gpu_memory_utilization if device.type == "cuda" else None
    if device.type == "cuda":
        check_compiler()
    command = server_command(config, host, port, memory_utilization)
    # Dev mode enables vLLM's weight-update routes for everyone; `TokenMiddleware` restricts them to
    # the token.
    server_environment = {"VLLM_SERVER_DEV_MODE": "1", TOKEN_VARIABLE: server_token()}
    defaults = vllm_environment(config.rollout.vllm.tensor_parallel)
    os.execve(command[0], command, {**defaults, **environment, **server_environment})


def server_command(
    config: TrainConfig, host: str, port: int, gpu_memory_utilization: float | None
) -> list[str]:
    """Return the server's command line: the run's model with dummy weights and the run's context
    length.

    ``gpu_memory_utilization`` is None on a CPU. It does not default to the value in `rollout.vllm`,
    which is for an engine that shares the GPU with a trainer.
    """
    on_gpu = gpu_memory_utilization is not None
    device = torch.device("cuda" if on_gpu else "cpu")
    model = config.model
    settings = config.rollout.vllm
    source = model_source(model)
    shape = AutoConfig.from_pretrained(
        source.name, revision=source.revision, trust_remote_code=model.trust_remote_code
    )
    setup = EngineSetup(
        source=source.name,
        max_model_len=context_length(config),
        dtype=dtype_name(compute_dtype(model, device)),
        settings=settings.model_copy(update={"sleep_level": 0}),
        revision=source.revision,
        trust_remote_code=model.trust_remote_code,
    )
    is_dual = hasattr(shape, "dual_chunk_attention_config")
    options = llm_options(setup, device, ranks=1) | {
        "hf_overrides": {"dual_chunk_attention_config": None} if is_dual else None,
        "disable_log_stats": None,
        "gpu_memory_utilization": gpu_memory_utilization,
        "host": host,
        "port": port,
        # the last middleware sees a request first: a body without the token is not stored
        "middleware": [
            f"{middleware.__module__}.{middleware.__name__}"
            for middleware in (UploadMiddleware, TokenMiddleware)
        ],
        "enable_scale_out": True,
        "weight_transfer_config": {"backend": BACKENDS[settings.server_weight_transfer]},
    }
    if on_gpu:
        # vLLM's default, because no trainer shares the GPU
        options["max_num_batched_tokens"] = None
    # `vllm serve` is the same server, but fails with the CPU package, whose distribution name is
    # not vllm
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *_words(options)]


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    """Convert `vllm.LLM` arguments to command-line flags, one per element of a list; None values
    are skipped.
    """
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        elif isinstance(value, list):
            for element in value:
                yield from (f"--{flag}", element)
        elif value is not None:
            yield f"--{flag}"
            yield value if isinstance(value, str) else json.dumps(value)
