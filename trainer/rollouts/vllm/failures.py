"""Translation of vLLM errors into errors that name the settings to change."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CalledProcessError

import torch
from pydantic import ValidationError

from loptune.errors import ConfigError, EngineError, first_line

# error text for a request that is longer than the model's context
_BEYOND_CONTEXT = re.compile(r"max_model_len \(\d+\) is greater")
_MEMORY_WORDS = ("memory", "kv cache", "cache block")


@contextmanager
def engine_errors(when: str) -> Iterator[None]:
    """Convert exceptions in this context to EngineError, or to ConfigError if a request can exceed
    the model's context; ``when`` describes the phase.

    Covers AssertionError (vLLM asserts that sleep freed memory) and CalledProcessError (Triton runs
    a C compiler).
    """
    try:
        yield
    except (ImportError, RuntimeError, ValueError, AssertionError, CalledProcessError) as error:
        if is_out_of_memory(error):
            raise EngineError(
                f"vLLM ran out of memory {when}: {first_line(error)}",
                "rollout.vllm.gpu_memory_utilization",
                "if the KV cache is too small, raise gpu_memory_utilization or kv_cache_mb; "
                "otherwise lower them. A smaller max_model_len or a larger tensor_parallel "
                "needs less memory; a smaller optim.tokens_per_microbatch or "
                "parallel.offload=optimizer frees memory for vLLM",
                code="engine-memory",
            ) from error
        reason = first_line(error)
        if isinstance(error, ValidationError):  # its own first line only counts the errors
            reason = error.errors()[0]["msg"]
        if _BEYOND_CONTEXT.search(reason):
            raise ConfigError(
                f"the longest prompt and completion exceed the model's context: {reason}",
                "data.max_prompt_tokens, rollout.max_new_tokens",
                "lower them, or use rollout.engine=transformers",
                code="context-too-short",
            ) from error
        raise EngineError(
            f"vLLM failed {when}: {reason}",
            "rollout.engine",
            "see vllm-RANK.log in the run folder and the requirements in docs/guides/gpu.md, "
            "or use rollout.engine=transformers",
            code="engine-failed",
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is about memory."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(word in text for word in _MEMORY_WORDS)
