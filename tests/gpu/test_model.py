"""A model of the presets' size with random weights: its memory against the estimate, its kernels
and its speed.

On the CPU the same with a small model.
"""

import pytest
import torch
from torch.profiler import profile
from transformers import AutoConfig, AutoModelForCausalLM

from tests.trainer.planning.test_memory import (
    MASTER_IN_OPTIMIZER,
    MICROBATCH,
    SIZES,
    computed_microbatch,
)
from trainer.config.schema import load_config
from trainer.policy.architectures import KNOWN
from trainer.policy.logprobs import LogprobModel

LOW = torch.bfloat16


def architecture(device):
    return KNOWN["Qwen/Qwen2.5-3B"].settings if device.type == "cuda" else SIZES


def make_model(device):
    torch.manual_seed(0)
    with device:
        config = AutoConfig.for_model(**architecture(device))
        return AutoModelForCausalLM.from_config(config, dtype=LOW, attn_implementation="sdpa")


@pytest.fixture
def model(device):
    yield make_model(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def microbatch(device, rows, length):
    """Token ids, prompt lengths and completion mask."""
    vocabulary = architecture(device)["vocab_size"]
    ids = torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(0)).to(
        device
    )
    return (
        ids,
        torch.ones(rows, dtype=torch.int64, device=device),
        torch.ones(rows, length - 1, device=device),
    )


def test_a_microbatch_takes_the_memory_that_is_estimated(device):
    large = ["optim.tokens_per_microbatch=16384"] if device.type == "cuda" else []
    kept = [
        "model.dtype=bfloat16",
        "model.gradient_checkpointing=true",
        *MASTER_IN_OPTIMIZER,
        *MICROBATCH,
        *large,
    ]
    estimated, measured = computed_microbatch(
        load_config("base", kept), architecture(device), device
    )
    print(f"{estimated / 1e9:.3f} GB estimated, {measured / 1e9:.3f} GB measured")
    assert estimated == pytest.approx(measured, rel=0.2)


def test_attention_stores_no_scores(device, model):
    scorer = LogprobModel(model.train(), 1.0, 512)
    with profile() as profiler:
        scorer(*microbatch(device, 2, 512)).logprobs.sum().backward()
    operations = {event.key for event in profiler.key_averages()}
    attention = sorted(name for name in operations if "attention" in name)
    print(attention)
    assert any("flash_attention" in name and "backward" in name for name in attention)
    assert not any("attention_math" in name for name in attention)
