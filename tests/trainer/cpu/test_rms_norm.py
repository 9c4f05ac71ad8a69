import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from trainer.cpu.rms_norm import rms_norm, use_rms_norm

EPSILON = 0.25  # large enough to be seen
SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
}


def test_a_row_by_hand() -> None:
    # mean square (9 + 16 + 0 + 0) / 4 = 6.25, and 6.25 + 0.3125 = 2.5617376914898995^2
    output = rms_norm(torch.tensor([3.0, -4.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 5.0, 1.0]), 0.3125)
    assert output.tolist() == pytest.approx([3 / 2.5617377, -8 / 2.5617377, 0.0, 0.0], rel=1e-6)


@pytest.mark.parametrize("shape", [(7, 16), (2, 3, 16), (1, 1, 16)])
def test_output_and_gradients_are_those_of_float64(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    input, weight, grad_output = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape)
    ours = [input.clone().requires_grad_(), weight.clone().requires_grad_()]
    output = rms_norm(*ours, EPSILON)
    output.backward(grad_output)
    theirs = [input.double().requires_grad_(), weight.double().requires_grad_()]
    expected = theirs[1] * theirs[0] / (theirs[0].pow(2).mean(-1, keepdim=True) + EPSILON).sqrt()
    expected.backward(grad_output.double())
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-6)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad.double(), reference.grad, rtol=1e-5, atol=1e-5)


def test_the_input_is_left_as_it_was_with_and_without_gradient() -> None:
    input, weight = torch.randn(3, 8), torch.randn(8, requires_grad=True)
    before = input.clone()
    with_gradient = rms_norm(input, weight, EPSILON)
    with torch.no_grad():
        without = rms_norm(input, weight, EPSILON)
    assert torch.equal(with_gradient, without) and not without.requires_grad
    with_gradient.sum().backward()
    assert torch.equal(input, before)


@pytest.mark.parametrize("family", [(Qwen2ForCausalLM, Qwen2Config), (LlamaForCausalLM, LlamaConfig)])
def test_a_model_computes_and_learns_the_same(family: tuple[type, type]) -> None:
    torch.manual_seed(0)
    theirs = family[0](family[1](**SIZES))
    for name, parameter in theirs.named_parameters():
        if "norm" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    ours = copy.deepcopy(theirs)
    use_rms_norm(ours)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert [type(m).__name__ for m in ours.modules() if "Lean" in type(m).__name__] != []
    ids = torch.arange(20).view(2, 10)
    for model in (ours, theirs):
        torch.log_softmax(model(ids).logits, dim=-1)[..., 3].sum().backward()
    for mine, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, reference.grad, rtol=1e-4, atol=1e-5)


def test_half_precision_is_left_to_transformers() -> None:
    norm = Qwen2RMSNorm(8, eps=EPSILON).bfloat16()
    nn.init.normal_(norm.weight)
    lean = copy.deepcopy(norm)
    use_rms_norm(lean)
    input = torch.randn(3, 8, dtype=torch.bfloat16)
    assert type(lean) is not type(norm)
    assert torch.equal(lean(input), norm(input)) and lean(input).dtype == torch.bfloat16


def test_other_norms_are_left_alone() -> None:
    norm = nn.RMSNorm(8)
    use_rms_norm(norm)
    assert type(norm) is nn.RMSNorm
