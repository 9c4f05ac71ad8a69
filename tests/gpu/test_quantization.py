"""Weights in 4 bits under an adapter; where bitsandbytes is installed."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.rollouts.vllm.models import random_qwen
from trainer.config.lora import LoraConfig
from trainer.policy.adapters import adapter_tensors, add_adapter
from trainer.policy.quantization import quantized
from trainer.rollouts.vllm.sync import named_weights

pytest.importorskip("bitsandbytes")


def test_rollouts_see_the_quantised_weights_and_the_adapter(device, tmp_path):
    plain = random_qwen(tied=True, layers=2)
    plain.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, **quantized(torch.float32, device)).train()
    add_adapter(loaded, LoraConfig(r=3, alpha=5.0))
    for tensor in adapter_tensors(loaded).values():
        torch.nn.init.normal_(tensor, std=0.2)
    merged = copy.deepcopy(plain).to(device)
    weights = dict(named_weights(loaded))
    assert list(weights) == [name for name, _ in plain.named_parameters()]
    merged.load_state_dict(weights, strict=False)
    ids = torch.arange(20, device=device)[None]
    logits = loaded(input_ids=ids).logits
    difference = float((logits - merged(input_ids=ids).logits).abs().max().detach())
    print(f"largest difference {difference:.1e}")
    assert difference < 1e-3  # kernels that dequantise inside may round otherwise
    assert float((logits - plain.to(device)(input_ids=ids).logits).abs().max().detach()) > 0.05
    logits.sum().backward()
    assert all(tensor.grad is not None for tensor in adapter_tensors(loaded).values())
    assert {p.requires_grad for name, p in loaded.named_parameters() if "lora" not in name} == {False}
