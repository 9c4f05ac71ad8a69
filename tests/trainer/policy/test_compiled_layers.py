import copy
import shutil

import pytest
import torch

from loptune.errors import ConfigError
from tests.conftest import random_model
from tests.refusals import refused
from tests.trainer.algorithm.batches import make_batch
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.parallel.models import load_models
from trainer.parallel.ranks import Parallel
from trainer.policy import compiled_layers
from trainer.policy.compiled_layers import CompiledLayers

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


@pytest.fixture
def counted(monkeypatch):
    """Calls of compiled layers."""
    calls = []
    original = compiled_layers._compiled

    def counting(forward):
        calls.append(forward)
        return original(forward)

    monkeypatch.setattr(compiled_layers, "_compiled", counting)
    return calls


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scoring_update_and_reference_agree_bitwise(random_policy, counted, dtype):
    """KL begins at 0 and ratios at 1; scores and gradients are those of layers as they were."""
    config = apply_overrides(
        TrainConfig(),
        {
            "model.name_or_path": str(random_policy),
            "model.compile": "layers",
            "model.dtype": dtype,
            "model.gradient_checkpointing": dtype == "bfloat16",
        },
    )
    models = load_models(config, Parallel())
    policy = models.policy
    batch = make_batch()
    for rows in (slice(None), slice(2, 3), slice(1, 4)):  # dynamic shapes, and a single row
        mask = batch.completion_mask[rows]
        inputs = (batch.input_ids[rows], batch.prompt_lengths[rows], mask)
        with torch.no_grad():
            scored = policy(*inputs).logprobs
            reference = models.reference(*inputs).logprobs
        trained = policy(*inputs).logprobs
        assert torch.equal(scored, trained)
        assert torch.equal(scored, reference)
        assert not reference.requires_grad
        trained.square().sum().backward()
        compiled = [parameter.grad.clone() for parameter in policy.parameters()]
        policy.zero_grad()
        with policy.compiled.off():
            plain = policy(*inputs).logprobs
            plain.square().sum().backward()
        rounding = 1e-4 if dtype == "float32" else 0.2
        assert (plain - trained).abs().max() < rounding
        for mine, parameter in zip(compiled, policy.parameters(), strict=True):
            scale = float(parameter.grad.abs().max().clamp(min=1e-3))
            assert (mine - parameter.grad).abs().max() < rounding * scale
        policy.zero_grad()
    assert all(parameter.grad is None for parameter in models.reference.parameters())

    before = len(counted)
    with torch.no_grad():
        models.causal_lm.eval().generate(batch.input_ids[:1, :4], max_new_tokens=3, do_sample=False)
    assert len(counted) == before  # sampling, which has a cache, is not compiled


def test_a_model_without_decoder_layers_is_refused():
    with refused("no-layers-to-compile", ConfigError, key="model.compile"):
        CompiledLayers(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    "others", [{"model.lora.r": 4}, {"parallel.strategy": "deepspeed", "parallel.zero_stage": 3}]
)
def test_combinations_that_cannot_work_are_refused_by_name(others):
    config = apply_overrides(TrainConfig(), others)
    with pytest.raises(ConfigError) as caught:
        apply_overrides(config, {"model.compile": "layers"})
    assert "model.compile" in str(caught.value)
    assert list(others)[-1].split(".")[1] in str(caught.value)


def test_a_copy_made_before_compiling_keeps_its_own_layers():
    model = random_model()
    reference = copy.deepcopy(model)
    CompiledLayers(model)
    assert "forward" not in vars(reference.model.layers[0])
