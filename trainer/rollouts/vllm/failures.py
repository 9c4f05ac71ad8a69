"""vLLM's failures, in terms of the settings that fix them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trainer.errors import EngineError, first_line

_MEMORY_WORDS = ("memory", "kv cache", "cache block")


@contextmanager
def failures_named(when: str) -> Iterator[None]:
    """Tell of a failure as one of the engine, ``when`` it happened."""
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:  # vLLM asserts that sleep has freed memory
        if is_short_of_memory(error):
            raise EngineError(
                f"vLLM does not get the memory it needs {when}: {first_line(error)}",
                "rollout.vllm.gpu_memory_utilization",
                "lower it; or let training leave more: a smaller optim.tokens_per_microbatch, "
                "parallel.offload=optimizer",
            ) from error
        raise EngineError(
            f"vLLM failed {when}: {first_line(error)}",
            "rollout.engine",
            "see the run's vllm.log; or use rollout.engine=transformers",
        ) from error


def start_error(error: Exception) -> EngineError:
    """The error of an engine that does not start."""
    if is_short_of_memory(error):
        return EngineError(
            f"vLLM does not get the memory it needs: {first_line(error)}",
            "rollout.vllm",
            "raise rollout.vllm.gpu_memory_utilization (or kv_cache_mb) if the cache is too small, lower it if "
            "the device is full; a smaller max_model_len or a larger tensor_parallel needs less",
        )
    return EngineError(
        f"vLLM does not start: {first_line(error)}",
        "rollout.engine",
        "see the run's vllm.log; or use rollout.engine=transformers",
    )


def is_short_of_memory(error: Exception) -> bool:
    """Whether an error tells of missing memory."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(word in text for word in _MEMORY_WORDS)
