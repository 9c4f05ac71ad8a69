import pytest
import torch
from pydantic import BaseModel, field_validator

from loptune.errors import ConfigError, EngineError
from tests.refusals import refused
from trainer.rollouts.vllm.failures import engine_errors


@pytest.mark.parametrize(
    ("message", "knob"),
    [
        ("CUDA out of memory.\nTried to allocate 2 GiB", "gpu_memory_utilization"),
        ("The KV cache is too small", "gpu_memory_utilization"),
        ("No free Cache Blocks", "gpu_memory_utilization"),
        ("Model architectures ['Odd'] are not supported", "rollout.engine=transformers"),
    ],
)
def test_a_failed_start_names_the_knobs(message, knob):
    with pytest.raises(EngineError) as failed, engine_errors("as it starts"):
        raise ValueError(message)
    assert knob in str(failed.value) and message.splitlines()[0] in failed.value.what


@pytest.mark.parametrize(
    ("error", "where", "code", "what"),
    [
        (
            RuntimeError("CUDA Error: out of memory at cumem.cpp:139\nand more"),
            "rollout.vllm.gpu_memory_utilization",
            "engine-memory",
            "CUDA Error: out of memory at cumem.cpp:139",
        ),
        (
            torch.OutOfMemoryError("too large"),
            "rollout.vllm.gpu_memory_utilization",
            "engine-memory",
            "too large",
        ),
        (ValueError("bad request"), "rollout.engine", "engine-failed", "bad request"),
        (RuntimeError(), "rollout.engine", "engine-failed", "RuntimeError"),
        (
            ValueError("max_num_batched_tokens (64) is smaller than max_model_len (128)."),
            "rollout.engine",
            "engine-failed",
            "max_num_batched_tokens (64) is smaller than max_model_len (128).",
        ),
    ],
)
def test_a_failure_says_when_it_happened_and_which_setting_mends_it(error, where, code, what):
    with refused(code, EngineError) as failed, engine_errors("while it samples"):
        raise error
    assert failed.value.where == where
    assert failed.value.what.endswith(f" while it samples: {what}")
    assert failed.value.__cause__ is error


class Context(BaseModel):
    """Refuses as vLLM does."""

    max_model_len: int

    @field_validator("max_model_len")
    @classmethod
    def check(cls, value):
        raise ValueError(f"User-specified max_model_len ({value}) is greater than 1024")


def test_vllms_own_limit_of_the_context_is_shown():
    with refused("context-too-short", ConfigError) as failed, engine_errors("during startup"):
        Context(max_model_len=2000)
    assert failed.value.what.endswith("User-specified max_model_len (2000) is greater than 1024")


def test_what_is_no_failure_of_the_engine_passes():
    with pytest.raises(KeyboardInterrupt), engine_errors("now"):
        raise KeyboardInterrupt
    with pytest.raises(KeyError), engine_errors("now"):
        raise KeyError("a fault of ours")
