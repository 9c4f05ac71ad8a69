"""Simulated memory against what torch's own allocator hands out when the same microbatch is really computed."""

import json
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

from trainer.config.model import LoraConfig
from trainer.planning.simulation import Microbatch, microbatch_bytes
from trainer.policy.adapters import add_adapter
from trainer.policy.logprobs import LogprobModel, tokens_per_chunk

ROWS, LENGTH, CHUNK_MB = 4, 256, 4
CPU = torch.device("cpu")
LOW, FULL = torch.bfloat16, torch.float32
SIZES = {
    "model_type": "qwen2",
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def allocated_at_most(run, device: torch.device = CPU) -> int:
    """Peak of what the allocator has given and not got back since the start, in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def really_computed(sizes, shape: Microbatch, device: torch.device = CPU) -> int:
    """Scoring, and an update of ``kept`` microbatches whose graphs exist together, by the trainer's own model."""
    config = AutoConfig.for_model(**sizes)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=shape.stored, attn_implementation="sdpa").train()
    if shape.adapter:
        add_adapter(model, LoraConfig.model_validate_json(shape.adapter), shape.trained)
    if shape.recomputes:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    chunk = tokens_per_chunk(sizes["vocab_size"], shape.chunk_mb, shape.on_gpu)
    scorer = LogprobModel(model, 1.0, chunk, shape.computed)
    scorer.packs_rows = False
    rows, length = shape.rows, shape.length
    ids = torch.arange(rows * length, device=device).remainder(sizes["vocab_size"]).view(rows, length)
    prompts = torch.ones(rows, dtype=torch.int64, device=device)
    mask = torch.ones(rows, length - 1, device=device)
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))

    @torch.no_grad()
    def score():
        scorer(ids, prompts, mask, True)

    def update():
        scorer(ids, prompts, mask).logprobs.sum().backward()

    return max(allocated_at_most(score, device), allocated_at_most(update, device))


@pytest.mark.parametrize(
    ("stored", "computed", "recomputes", "changes"),
    [
        (LOW, LOW, True, {}),
        (LOW, LOW, False, {}),
        (FULL, LOW, True, {}),
        (FULL, FULL, False, {}),
        (LOW, LOW, True, {"tie_word_embeddings": False, "vocab_size": 20000}),
        (LOW, LOW, True, {"model_type": "llama", "num_hidden_layers": 20}),
    ],
)
def test_it_is_what_the_allocator_hands_out(stored, computed, recomputes, changes):
    sizes = {**SIZES, **changes}
    shape = Microbatch(json.dumps(sizes), ROWS, LENGTH, stored, computed, CHUNK_MB, False, recomputes)
    check(sizes, shape)


@pytest.mark.parametrize("stored", [LOW, FULL])
def test_an_adapter_is_simulated_as_it_is_computed(stored):
    shape = Microbatch(json.dumps(SIZES), ROWS, LENGTH, stored, stored, CHUNK_MB, False, True)
    check(SIZES, replace(shape, adapter=LoraConfig(r=8).model_dump_json()))


def test_no_gradient_is_made_of_weights_that_an_adapter_leaves_alone():
    shape = Microbatch(json.dumps(SIZES), ROWS, LENGTH, FULL, FULL, CHUNK_MB, False, True)
    with_adapter = replace(shape, adapter=LoraConfig(r=8).model_dump_json())
    assert microbatch_bytes(with_adapter) < microbatch_bytes(shape) - 4096 * 128 * 4  # the head's


def check(sizes, shape: Microbatch) -> None:
    measured, simulated = really_computed(sizes, shape), microbatch_bytes(shape)
    print(f"{simulated / 1e6:.1f} MB simulated, {measured / 1e6:.1f} MB measured")
    assert simulated == pytest.approx(measured, rel=0.04)
