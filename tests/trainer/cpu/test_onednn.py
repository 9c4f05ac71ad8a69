import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from trainer.cpu import onednn
from trainer.cpu.onednn import (
    MIN_PRODUCT,
    MIN_ROWS_TO_COPY,
    MIN_WEIGHT,
    OneDnnLinear,
    linear,
    repeated_linear,
    use_onednn,
)

LOOKED_UP = onednn.mkl_leaves_avx512_unused  # before the tests replace it
N, K = 256, 160  # above MIN_WEIGHT


@pytest.fixture(autouse=True)
def processor_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "mkl_leaves_avx512_unused", lambda: True)


def tensors(rows: int, n: int = N, k: int = K, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, rows // 2, k), (n, k), (n,), (2, rows // 2, n))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def gradients(function, *inputs: torch.Tensor, grad_output: torch.Tensor) -> list[torch.Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = function(*leaves)
    output.backward(grad_output)
    return [output.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("n", [N, 144])  # more and fewer outputs than inputs: the weight gradient's two ways
@pytest.mark.parametrize("with_bias", [True, False])
def test_output_and_gradients_are_those_of_float64(n: int, with_bias: bool) -> None:
    k = 400 - n
    x, weight, bias, grad_output = tensors(300, n, k)
    inputs = (x, weight, bias) if with_bias else (x, weight)
    assert weight.numel() >= MIN_WEIGHT and 300 * weight.numel() >= MIN_PRODUCT
    doubles = [tensor.double() for tensor in inputs]
    expected = gradients(functional.linear, *doubles, grad_output=grad_output.double())
    for ours, theirs in zip(gradients(linear, *inputs, grad_output=grad_output), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [128, 129, 256, 512, 1024])  # both factors are copied up to twice the other width
def test_weight_gradients_of_many_rows_are_those_of_float64(n: int) -> None:
    rows = MIN_ROWS_TO_COPY + 2
    x, weight, bias, grad_output = tensors(rows, n, 256)
    assert weight.numel() >= MIN_WEIGHT
    doubles = [tensor.double() for tensor in (x, weight, bias)]
    expected = gradients(functional.linear, *doubles, grad_output=grad_output.double())
    for ours, theirs in zip(gradients(linear, x, weight, bias, grad_output=grad_output), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-3)


def test_a_layer_that_needs_no_gradient_gets_none() -> None:
    x, weight, bias, grad_output = tensors(300)
    x.requires_grad_()
    linear(x, weight, bias).backward(grad_output)
    torch.testing.assert_close(x.grad, grad_output @ weight, rtol=1e-4, atol=1e-4)
    assert weight.grad is None and bias.grad is None


def test_rows_in_any_memory_order() -> None:
    x, weight, *_ = tensors(300)
    turned = x.transpose(0, 1)
    torch.testing.assert_close(linear(turned, weight), functional.linear(turned, weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "n", "dtype"), [(2, N, torch.float32), (300, 16, torch.float32), (300, N, torch.bfloat16)]
)
def test_small_products_and_other_dtypes_are_left_to_torch(rows: int, n: int, dtype: torch.dtype) -> None:
    x, weight, bias, _ = tensors(rows, n, dtype=dtype)
    assert torch.equal(linear(x, weight, bias), functional.linear(x, weight, bias))


def test_autocast_still_lowers_the_precision() -> None:
    x, weight, *_ = tensors(300)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


def test_a_models_layers_change_their_class_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(K, N), nn.Embedding(4, 4))
    names = list(model.state_dict())
    use_onednn(model)
    assert type(model[0]) is OneDnnLinear and type(model[1]) is nn.Embedding
    assert list(model.state_dict()) == names
    twin = copy.deepcopy(model)
    x = tensors(300)[0]
    assert torch.equal(twin[0](x), model[0](x))


@pytest.mark.parametrize("outputs", [N, 8])  # arranged for oneDNN, and too small for that
@pytest.mark.parametrize("biases", [(True, False), (False, False)])
def test_repeated_layers_give_their_outputs_side_by_side(outputs: int, biases: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(K, outputs, bias=bias) for bias in biases]
    x = torch.randn(300, K)
    both = repeated_linear([(layer.weight, layer.bias) for layer in layers], rows=300)
    for rows in (300, 17, 1):  # fewer as time goes on
        expected = torch.cat([layer.double()(x[:rows].double()) for layer in layers], dim=-1)
        torch.testing.assert_close(both(x[:rows]).double(), expected, rtol=1e-4, atol=1e-4)


def test_repeated_layers_of_other_dtypes_are_left_to_torch() -> None:
    layer = nn.Linear(K, N, dtype=torch.bfloat16)
    x = torch.randn(300, K).to(torch.bfloat16)
    assert torch.equal(repeated_linear([(layer.weight, layer.bias)], rows=300)(x), layer(x))


@pytest.mark.parametrize(
    ("capability", "vendor", "pays"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
    ],
)
def test_it_pays_where_mkl_leaves_avx512_unused(monkeypatch, tmp_path, capability, vendor, pays) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    monkeypatch.setattr(onednn, "Path", lambda _: tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert LOOKED_UP.__wrapped__() is pays
