"""vLLM's failures, in terms of the settings that fix them."""

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CalledProcessError

import torch

from trainer.errors import EngineError, first_line

_MEMORY_WORDS = ("memory", "kv cache", "cache block")


@contextmanager
def failures_named(when: str) -> Iterator[None]:
    """Tell of a failure as one of the engine, ``when`` it happened.

    vLLM asserts that sleep has freed memory, and Triton calls a C compiler.
    """
    try:
        yield
    except (ImportError, RuntimeError, ValueError, AssertionError, CalledProcessError) as error:
        if is_short_of_memory(error):
            raise EngineError(
                f"vLLM does not get the memory it needs {when}: {first_line(error)}",
                "rollout.vllm.gpu_memory_utilization",
                "raise gpu_memory_utilization (or kv_cache_mb) if the cache is too small, else "
                "lower it; a smaller max_model_len or a larger tensor_parallel needs less, a "
                "smaller optim.tokens_per_microbatch or parallel.offload=optimizer leaves more",
            ) from error
        raise EngineError(
            f"vLLM failed {when}: {first_line(error)}",
            "rollout.engine",
            "see the run's vllm.log, and docs/guides/gpu.md for what vLLM needs; or use "
            "rollout.engine=transformers",
        ) from error


def is_short_of_memory(error: Exception) -> bool:
    """Return whether an error tells of missing memory."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(word in text for word in _MEMORY_WORDS)
